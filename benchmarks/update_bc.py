"""What does one update cost? Rival: a bare PyTorch loop with torch.optim.Adam over the same network and batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from benchmarks.harness import Row
from offline_cli.modules.policy import build_module
from offline_cli.training.batches import WEIGHTS
from offline_cli.training.flat_adam import FlatAdam
from offline_cli.training.updates import Update

BATCH, OBS, PAIRS, PER_PAIR = 1024, 4, 20, 20


def rows() -> list[Row]:
    torch.set_num_threads(1)
    return [one((256, 256)), one((64, 64))]


def one(hidden: tuple[int, int]) -> Row:
    ours, rival = our_update(hidden), bare_update(hidden)
    times = [(seconds(ours), seconds(rival)) for _ in range(PAIRS + 1)]  # the first pair warms up
    mine, theirs = (statistics.median(column) for column in zip(*times[1:], strict=True))
    ratio = statistics.median(slow / fast for fast, slow in times[1:])
    question = f"one update on the CPU, MLP {'x'.join(map(str, hidden))}, batch {BATCH}, 1 thread"
    return Row(
        question, "updates/s", PER_PAIR / mine, PER_PAIR / theirs, ratio, "a bare PyTorch loop", "the matrix products", PAIRS
    )


def seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    for _ in range(PER_PAIR):
        call()
    return time.perf_counter() - start


def our_update(hidden: tuple[int, int]) -> Callable[[], None]:
    space = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    module = build_module(space, spaces.Discrete(2), hidden=hidden, action_scale="env", seed=0)
    batch = {"obs": torch.randn(BATCH, OBS), "actions": torch.randint(0, 2, (BATCH,)), WEIGHTS: torch.full((BATCH,), 1 / BATCH)}
    return Update(module, FlatAdam(module.parameters(), lr=1e-3), batch, precision="fp32")


def bare_update(hidden: tuple[int, int]) -> Callable[[], None]:
    first, second = hidden
    net = nn.Sequential(nn.Linear(OBS, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    obs, actions = torch.randn(BATCH, OBS), torch.randint(0, 2, (BATCH,))

    def update() -> None:
        loss = nn.functional.cross_entropy(net(obs), actions)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return update
