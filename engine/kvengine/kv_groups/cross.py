"""Cross-attention: blocks for the encoder's tokens, from admission to the end."""

from kvengine.block_table import BlockTable
from kvengine.kv_groups.group import NEVER, GroupManager, StepTokens
from kvengine.request import Request
from kvengine.units import cdiv


class CrossGroup(GroupManager):
    """Cross-attention of an encoder-decoder model; nothing of it can be found by its content."""

    def target(self, request: Request, _num_tokens: int, _num_lookahead: int, /) -> int:
        """The encoder's tokens, however many of the decoder's there are."""
        return request.num_encoder_tokens

    def check_table(self, table: BlockTable, request: Request, _num_covered: int) -> None:
        """There is a place for each encoder token, and no more than are needed."""
        num_needed = cdiv(request.num_encoder_tokens, self.block_size)
        assert len(table.block_ids) == num_needed, (
            f"{request.request_id} has {request.num_encoder_tokens} encoder tokens in blocks {table.block_ids}"
        )

    def note_tail(self, table: BlockTable, num_computed: int) -> None:
        """Nothing is written after admission."""

    def quiet_until(self, _table: BlockTable, _step: StepTokens, /) -> int:
        """Nothing happens until the end."""
        return NEVER
