"""What does one update cost on the CPU? Rivals: a bare PyTorch loop over the same network and batches, imitation and d3rlpy.

The two libraries draw their batches as they do for a user, because neither can leave it out; against them ours draws its own
too, from as many steps. Against the bare loop both repeat one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from benchmarks.floors import Floor, work_floor
from benchmarks.harness import Missing, Row, missing, paired_rates, timed, versions
from benchmarks.rival_process import Rival
from benchmarks.targets import NO_TARGET, Target
from offline_cli.modules.policy_modules import build_module
from offline_cli.modules.rl_module import RLModule
from offline_cli.training.learner import cloning_learner
from offline_cli.training.loader import WEIGHTS, StepLoader
from offline_cli.training.memory_store import MemoryStore
from offline_cli.training.updates import Update

BATCH, OBS, PAIRS, PER_PAIR = 1024, 4, 20, 20
HELD = 40 * BATCH  # steps that the libraries draw from, as in rivals/
TARGET = Target(1 / 1.05, words="<= 1.05x a bare PyTorch loop")
LIBRARIES = ("imitation", "d3rlpy")


def rows() -> list[Row]:
    torch.set_num_threads(1)
    return [bare((256, 256), TARGET), bare((64, 64), NO_TARGET), *(library(name, (256, 256)) for name in LIBRARIES)]


def asked(hidden: tuple[int, int]) -> str:
    return f"one update on the CPU, MLP {'x'.join(map(str, hidden))}, batch {BATCH}, 1 thread"


def floor(hidden: tuple[int, int]) -> Floor:
    """Forward, and back to the weights and to every layer's inputs but the first's."""
    first, second = hidden
    products = 3 * (first * second + second * 2) + 2 * OBS * first
    return work_floor(2 * BATCH * products, "update", threads=1)


def bare(hidden: tuple[int, int], target: Target) -> Row:
    return paired_rates(
        asked(hidden),
        unit="updates/s",
        ours=repeated(our_update(hidden)),
        rival=repeated(bare_update(hidden)),
        rival_name=f"a bare PyTorch loop ({versions('torch')})",
        floor=floor(hidden),
        target=target,
        pairs=PAIRS,
    )


def library(name: str, hidden: tuple[int, int]) -> Row:
    question = f"{asked(hidden)}, batches drawn"
    try:
        with Rival(f"{name}_bc.py", name, hidden=hidden, batch=BATCH, updates=PER_PAIR, threads=1) as rival:
            return paired_rates(
                question,
                unit="updates/s",
                ours=repeated(our_training(hidden)),
                rival=rival,
                rival_name=rival.versions,
                floor=floor(hidden),
                pairs=7,
            )
    except Missing as error:
        return missing(question, error, unit="updates/s", rival_name=name)


def repeated(update: Callable[[], object]) -> Callable[[], float]:
    def run() -> None:
        for _ in range(PER_PAIR):
            update()

    return timed(run, PER_PAIR)


def new_module(hidden: tuple[int, int]) -> RLModule:
    space = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    return build_module(space, spaces.Discrete(2), hidden=hidden, action_scale="env", seed=0)


def our_update(hidden: tuple[int, int]) -> Callable[[], None]:
    module = new_module(hidden)
    batch = {"obs": torch.randn(BATCH, OBS), "actions": torch.randint(0, 2, (BATCH,)), WEIGHTS: torch.full((BATCH,), 1 / BATCH)}
    return Update(cloning_learner(module), batch, lr=1e-3)


def our_training(hidden: tuple[int, int]) -> Callable[[], None]:
    """A batch drawn, an update, as `train-bc` does."""
    columns = {"obs": torch.randn(HELD, OBS), "actions": torch.randint(0, 2, (HELD,))}
    loader = StepLoader(MemoryStore(columns), batch_size=BATCH, seed=0, device=torch.device("cpu"))
    module, numbers = new_module(hidden), count()
    update = Update(cloning_learner(module), loader.batch, lr=1e-3)

    def step() -> None:
        loader.fill(next(numbers))
        update()

    return step


def bare_update(hidden: tuple[int, int]) -> Callable[[], None]:
    first, second = hidden
    net = nn.Sequential(nn.Linear(OBS, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    obs, actions = torch.randn(BATCH, OBS), torch.randint(0, 2, (BATCH,))

    def update() -> None:
        loss = nn.functional.cross_entropy(net(obs), actions)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return update
