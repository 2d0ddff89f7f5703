"""Cross-attention: blocks for the encoder's tokens, from admission to the end."""

from kvengine.block_table import BlockTable
from kvengine.kv_groups.group import NEVER, GroupManager, StepTokens
from kvengine.request import Request


class CrossGroup(GroupManager):
    """Cross-attention of an encoder-decoder model; nothing of it is shared."""

    def target(self, request: Request, _num_tokens: int, _num_lookahead: int, /) -> int:
        """The encoder's tokens, however many of the decoder's there are."""
        return request.num_encoder_tokens

    def quiet_until(self, _table: BlockTable, _step: StepTokens, /) -> int:
        """Nothing happens until the end."""
        return NEVER
