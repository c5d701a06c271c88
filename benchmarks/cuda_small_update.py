"""What does one update of a small network cost on the GPU? Rival: a bare PyTorch loop, eager, with fused Adam."""

from __future__ import annotations

from typing import Any

from benchmarks.cuda_training import bare_steps, card, card_name, matrix_rate, operations, our_steps, rate_of, vector_space
from benchmarks.floors import Floor
from benchmarks.harness import Missing, Row, missing, paired_rates
from benchmarks.targets import Target

BATCH, WIDTH, HIDDEN, HELD, COUNT = 1024, 4, (256, 256), 100_000, 2000
QUESTION = f"one update on the GPU, MLP {HIDDEN[0]}x{HIDDEN[1]}, batch {BATCH}, batches drawn"
TARGET = Target(1 / 60e-6, of="ours", words="<= 60 us per update")


def rows() -> list[Row]:
    try:
        device = card()
    except Missing as error:
        return [missing(QUESTION, error, unit="updates/s", target=TARGET)]
    shape: dict[str, Any] = {"batch": BATCH, "held": HELD, "precision": "fp32", "device": device}
    work = BATCH * operations(WIDTH, HIDDEN)
    return [
        paired_rates(
            QUESTION,
            unit="updates/s",
            ours=rate_of(our_steps(vector_space(WIDTH), HIDDEN, **shape), COUNT, device),
            rival=rate_of(bare_steps(vector_space(WIDTH), HIDDEN, **shape), COUNT, device),
            rival_name=f"a bare PyTorch loop ({card_name()})",
            floor=Floor(f"{work / 1e9:.2f} GFLOP at the card's bf16 matrix rate; launches cost more", matrix_rate() / work),
            target=TARGET,
        )
    ]
