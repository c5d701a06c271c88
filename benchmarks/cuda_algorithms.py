"""What does one update of each algorithm cost on the GPU? Batches are drawn on the device; there is no rival."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.cuda_training import card, card_name, rate_of
from benchmarks.harness import Missing, Row, missing
from benchmarks.targets import NO_TARGET, Target
from benchmarks.update_algorithms import BATCH, HIDDEN, our_update

ALGORITHMS = ("bc", "marwil", "iql", "td3-bc")
COUNT, LOOKED_AT = 2000, 20
QUESTION = f"one update of {{}} on the GPU, MLP {HIDDEN[0]}x{HIDDEN[1]}, batch {BATCH}, batches drawn"
TARGETS = {"iql": Target(3000.0, of="ours", words=">= 3,000 updates/s")}
LAUNCHES = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")


def rows() -> list[Row]:
    return [row(name) for name in ALGORITHMS]


def row(name: str) -> Row:
    question, target = QUESTION.format(name), TARGETS.get(name, NO_TARGET)
    try:
        device = card()
    except Missing as error:
        return missing(question, error, unit="updates/s", target=target)
    step = our_update(name, device)
    ours = rate_of(step, COUNT, device)()
    told = f"{launches(step) / LOOKED_AT:g} launches an update ({card_name()})"
    return Row(question, "updates/s", ours, None, None, "", told, 1, target=target)


def launches(step: Callable[[], None]) -> int:
    """How often LOOKED_AT steps ask the device for work."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(LOOKED_AT):
            step()
    return sum(event.name in LAUNCHES or event.name.startswith("cuLaunchKernel") for event in profile.events() or ())
