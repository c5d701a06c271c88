"""What does one update from stacks of frames cost on the CPU? Rival: a bare PyTorch loop that holds the stacks whole.

Both draw their batches: ours gathers four frames a step from single ones, the bare loop takes stacks that hold each frame
four times, channels first as PyTorch's networks want them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from benchmarks.harness import Row, paired_rates, timed, versions
from benchmarks.targets import Target
from offline_cli.applying.frame_stacks import FrameStacks
from offline_cli.modules.policy_modules import build_module
from offline_cli.training.learner import cloning_learner
from offline_cli.training.loader import StepLoader
from offline_cli.training.memory_store import MemoryStore
from offline_cli.training.updates import Update

BATCH, HELD, FRAMES, PER_PAIR, PAIRS = 64, 2000, 4, 3, 9
TARGET = Target(1 / 1.1, words="<= 1.1x a bare PyTorch loop")
QUESTION = f"one update on the CPU, nature CNN on stacks of {FRAMES} frames 84x84, batch {BATCH}, 1 thread, batches drawn"


def rows() -> list[Row]:
    torch.set_num_threads(1)
    return [
        paired_rates(
            QUESTION,
            unit="updates/s",
            ours=repeated(our_update()),
            rival=repeated(bare_update()),
            rival_name=f"a bare PyTorch loop ({versions('torch')})",
            target=TARGET,
            pairs=PAIRS,
        )
    ]


def repeated(update: Callable[[], object]) -> Callable[[], float]:
    def run() -> None:
        for _ in range(PER_PAIR):
            update()

    return timed(run, PER_PAIR)


def our_update() -> Callable[[], None]:
    """A batch gathered and an update, as `train` does."""
    frames = torch.randint(0, 256, (HELD, 84, 84, 1), dtype=torch.uint8)
    ages = torch.arange(HELD).clamp(max=FRAMES - 1).to(torch.uint8)
    columns = {"obs": FrameStacks(frames, torch.arange(HELD), ages, FRAMES), "actions": torch.randint(0, 6, (HELD,))}
    loader = StepLoader(MemoryStore(columns), batch_size=BATCH, seed=0, device=torch.device("cpu"))
    space = spaces.Box(0, 255, (84, 84, FRAMES), np.uint8)
    module = build_module(space, spaces.Discrete(6), hidden=(512,), action_scale="env", seed=0)
    update, numbers = Update(cloning_learner(module), loader.batch, lr=1e-4), count()

    def step() -> None:
        loader.fill(next(numbers))
        update()

    return step


def bare_update() -> Callable[[], None]:
    net = nn.Sequential(
        *(nn.Conv2d(FRAMES, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6)),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    stacks = torch.randint(0, 256, (HELD, FRAMES, 84, 84), dtype=torch.uint8)
    actions = torch.randint(0, 6, (HELD,))

    def update() -> None:
        rows = torch.randint(0, HELD, (BATCH,))
        loss = nn.functional.cross_entropy(net(stacks[rows].float() / 255), actions[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return update
