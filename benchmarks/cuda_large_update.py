"""How much of the GPU does a large network use? Rivals: a bare PyTorch loop in bf16, and the card's own matrix rate."""

from __future__ import annotations

from typing import Any

from benchmarks.cuda_training import bare_steps, card, card_name, matrix_rate, operations, our_steps, rate_of, vector_space
from benchmarks.floors import Floor
from benchmarks.harness import Missing, Row, missing, paired_rates
from benchmarks.targets import Target

BATCH, WIDTH, HIDDEN, HELD, COUNT = 65_536, 256, (2048,) * 4, 1_000_000, 30
PRECISION = "bf16"
QUESTION = f"samples per second on the GPU, MLP 4 x 2048, batch {BATCH:,}, {PRECISION}"
ACHIEVED = f"operations per second on the GPU, MLP 4 x 2048, batch {BATCH:,}, {PRECISION}"
TARGET = Target(0.5, words=">= 50 % of the card's measured matrix rate")


def rows() -> list[Row]:
    try:
        device = card()
    except Missing as error:
        return [missing(QUESTION, error, unit="samples/s"), missing(ACHIEVED, error, unit="TFLOP/s", target=TARGET)]
    shape: dict[str, Any] = {"batch": BATCH, "held": HELD, "precision": PRECISION, "device": device}
    work = operations(WIDTH, HIDDEN)
    samples = paired_rates(
        QUESTION,
        unit="samples/s",
        ours=rate_of(our_steps(vector_space(WIDTH), HIDDEN, **shape), COUNT, device, amount=BATCH),
        rival=rate_of(bare_steps(vector_space(WIDTH), HIDDEN, **shape), COUNT, device, amount=BATCH),
        rival_name=f"a bare PyTorch loop ({card_name()})",
        floor=Floor(f"{work / 1e6:.1f} MFLOP a sample at {matrix_rate() / 1e12:.0f} TFLOP/s", matrix_rate() / work),
    )
    return [samples, achieved(samples, work)]


def achieved(samples: Row, work: float) -> Row:
    """The same figure as a share of what the card does in nothing but products of large matrices."""
    assert samples.ours is not None
    mine, most = samples.ours * work / 1e12, matrix_rate() / 1e12
    name, words = "the card's bf16 matrix rate, measured", "the rival"
    return Row(ACHIEVED, "TFLOP/s", mine, most, mine / most, name, words, samples.pairs, most, None, TARGET)
