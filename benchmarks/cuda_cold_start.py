"""How long from the start of the process to a confirmed return of 450, on the GPU? Rival: the same on the CPU."""

from __future__ import annotations

import tempfile
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.cold_start import imports, seconds
from benchmarks.cuda_training import card, card_name
from benchmarks.floors import Floor
from benchmarks.harness import Missing, Row, missing, paired_rates
from benchmarks.recordings import recording

QUESTION = "train-bc --device cuda on {} expert steps of CartPole, process start to a confirmed return of 450"
SAMPLE = Path(__file__).resolve().parent.parent / "sample_data" / "rllib_cartpole_expert"


def data() -> tuple[str, str]:
    """RLlib's recording and its number of steps; where it is not on this machine, the smaller one that the repository has."""
    try:
        return str(recording("rllib_episodes_cartpole_expert")), "46,184"
    except Missing:
        return str(SAMPLE), "8,981"


def rows() -> list[Row]:
    try:
        card()
    except Missing as error:
        return [missing(QUESTION.format("46,184"), error, unit="runs/s")]
    source, steps = data()
    with tempfile.TemporaryDirectory() as folder:
        numbers = count()

        def rate(device: str) -> float:
            return 1 / seconds(f"{folder}/{next(numbers)}", source, device=device)

        started = imports()
        return [
            paired_rates(
                QUESTION.format(steps),
                unit="runs/s",
                ours=partial(rate, "cuda"),
                rival=partial(rate, "cpu"),
                rival_name=f"the same on the CPU ({card_name()})",
                floor=Floor(f"imports of torch and gymnasium: {started:.1f} s", 1 / started),
                pairs=3,
            )
        ]
