"""What an engine says of a block when it is asked, over its socket."""

import time
from hashlib import blake2b

import pytest

from kvengine.observer import TelemetryPublisher
from kvengine.telemetry.commands import TellBlock
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.schema import BlockContent
from tests.watched_engine import WatchedEngine


@pytest.fixture
def watched(tmp_path) -> WatchedEngine:
    engine = WatchedEngine(
        publisher=lambda facts, clock: TelemetryPublisher.open(
            facts, clock=clock, socket=tmp_path / "engine.sock", text_of=lambda ids: "".join(map(chr, ids))
        )
    )
    yield engine
    engine.engine.close("done")


def ask(watched: WatchedEngine, viewer: Attachment, block_id: int) -> BlockContent:
    assert viewer.send(TellBlock(block_id))
    give_up_s = time.monotonic() + 10
    while time.monotonic() < give_up_s:
        watched.publisher.poll()
        for frame in viewer.receive(0.01) or ():
            if isinstance(frame, BlockContent):
                return frame
    raise AssertionError("no answer")


def digest(parent: bytes, *token_ids: int) -> bytes:
    """The hash of a block of these tokens, as the engine's documents define it."""
    return blake2b(parent + b"".join(token.to_bytes(4, "little") for token in token_ids), digest_size=32).digest()


def test_a_block_has_its_tokens_its_text_and_the_hashes_of_its_prefix(watched, tmp_path):
    prompt = [ord(sign) for sign in "abcdefghij"]
    watched.add("a", prompt=prompt, max_tokens=9)
    watched.step()
    with Attachment.open(tmp_path / "engine.sock") as viewer:
        first = ask(watched, viewer, 1)
        # Blocks of four: abcd in block 1, efgh in block 2, ij in block 3.
        assert (first.token_ids, first.text) == (prompt[:4], "abcd")
        own = digest(bytes(32), *prompt[:4])
        assert first.hashes == [own]
        second = ask(watched, viewer, 2)
        assert second.text == "efgh"
        assert second.hashes == [digest(own, *prompt[4:8]), own]
        third = ask(watched, viewer, 3)
        assert (third.text, third.hashes) == ("ij", []), "a block that is not full has no hash"
        assert ask(watched, viewer, 7) == BlockContent(block_id=7)
        assert ask(watched, viewer, 99).note == "there is no block 99"


def test_of_a_cached_block_that_nobody_holds_the_hash_is_known_and_the_tokens_are_not(watched, tmp_path):
    prompt = [ord(sign) for sign in "abcdef"]
    watched.add("a", prompt=prompt, max_tokens=1)
    watched.step()
    with Attachment.open(tmp_path / "engine.sock") as viewer:
        content = ask(watched, viewer, 1)
    assert content.hashes == [digest(bytes(32), *prompt[:4])]
    assert content.token_ids == []
    assert content.note == "its tokens are not kept once nobody holds it"
