"""The estimate of what an engine takes besides weights and KV."""

from kvplan.estimate import Amount, Evidence
from kvplan.overhead import estimate_overhead
from kvplan.parameters import Geometry

GIB = 2**30


def overhead(
    *,
    vocab: int = 128_256,
    hidden: int = 4096,
    card: int = 24,
    ranks: int = 1,
    seqs: int | None = None,
    tokens: int | None = None,
) -> Amount:
    geometry = Geometry(
        num_layers=32,
        num_attention_heads=32,
        num_kv_heads=8,
        head_dim=128,
        hidden_size=hidden,
        vocab_size=vocab,
        max_model_len=8192,
    )
    return estimate_overhead(
        geometry, card_bytes=card * GIB, tensor_parallel=ranks, max_num_seqs=seqs, max_num_batched_tokens=tokens
    )


def test_the_larger_of_sampling_and_one_step_is_charged_beside_the_fixed_part() -> None:
    # 256 sequences * 128,256 entries * 24 bytes is more than 2,048 tokens * 4,096 * 24, and half a GiB is fixed.
    assert overhead().size_bytes == 256 * 128_256 * 24 + GIB // 2
    # With a small vocabulary the step decides.
    assert overhead(vocab=1000).size_bytes == 2048 * 4096 * 24 + GIB // 2


def test_a_large_card_starts_with_larger_batches_unless_told_otherwise() -> None:
    assert overhead(card=80).size_bytes == overhead(seqs=1024, tokens=8192).size_bytes
    assert overhead(card=80, seqs=256, tokens=2048) == overhead(card=24)


def test_several_gpus_need_buffers_between_them() -> None:
    assert overhead(ranks=2).size_bytes - overhead().size_bytes == GIB // 2


def test_it_is_an_estimate_whose_range_holds_public_readings() -> None:
    # vLLM 0.11 on an 80 GB H100, Llama-3.1-8B: 4.76 GiB at the activation peak and 0.13 outside torch.
    amount = overhead(card=79)

    assert amount.evidence is Evidence.ESTIMATED
    assert amount.low_bytes < 4.89 * GIB < amount.high_bytes
    # vLLM 0.8 on a T4, a 3B Llama of the same vocabulary: 0.90 and 0.05 GiB.
    assert overhead(hidden=3072, card=15).low_bytes < 0.95 * GIB < overhead(hidden=3072, card=15).high_bytes
