"""What does one update cost on the CPU, and how long is it from process start to a return of 450? Rival: a bare PyTorch loop.

Both repeat one batch on one thread. The cold start reads RLlib's recording, trains, and plays in CartPole-v1 until the mean of
20 episodes is 450, confirmed on 100 others.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from benchmarks.harness import HERE, Floor, Missing, Row, missing, paired, recording, timed, versions
from offline_cli.modules.policy_modules import build_module
from offline_cli.training.learner import Update, cloning_learner
from offline_cli.training.steps import WEIGHTS

BATCH, OBS, HIDDEN = 1024, 4, (256, 256)
UPDATE = Floor(1 / 1.1, words="<= 1.1x the time of a bare PyTorch loop")
COLD_START = Floor(1 / 8, of="ours", words="<= 8 s")


def rows(small: bool = False) -> list[Row]:
    torch.set_num_threads(1)
    return [update(1, 1) if small else update(20, 20), cold_start(1 if small else 5, 10 if small else None)]


def update(pairs: int, times: int) -> Row:
    """So many pairs, each of so many updates."""
    return paired(
        f"one update on the CPU, MLP 256x256, batch {BATCH}, 1 thread",
        repeated(our_update(), times),
        repeated(bare_update(), times),
        unit="updates/s",
        rival_name=f"a bare PyTorch loop ({versions('torch')})",
        floor=UPDATE,
        pairs=pairs,
    )


def repeated(step: Callable[[], object], times: int) -> Callable[[], float]:
    def run() -> None:
        for _ in range(times):
            step()

    return timed(run, times)


def our_update() -> Callable[[], None]:
    space = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    module = build_module(space, spaces.Discrete(2), hidden=HIDDEN, action_scale="env", seed=0)
    batch = {"obs": torch.randn(BATCH, OBS), "actions": torch.randint(0, 2, (BATCH,)), WEIGHTS: torch.full((BATCH,), 1 / BATCH)}
    return Update(cloning_learner(module), batch, lr=1e-3)


def bare_update() -> Callable[[], None]:
    first, second = HIDDEN
    net = nn.Sequential(nn.Linear(OBS, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    obs, actions = torch.randn(BATCH, OBS), torch.randint(0, 2, (BATCH,))

    def step() -> None:
        loss = nn.functional.cross_entropy(net(obs), actions)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def cold_start(runs: int, updates: int | None = None) -> Row:
    """With `updates`, a run of so many in place of one until the return is reached."""
    question = "train-bc on 46,184 expert steps of CartPole, process start to a confirmed return of 450"
    try:
        source = str(recording("rllib_episodes_cartpole_expert"))
    except Missing as error:
        return missing(question, error, unit="runs/s", floor=COLD_START)
    with tempfile.TemporaryDirectory() as folder:
        mine = statistics.median(seconds(f"{folder}/{run}", source, updates=updates) for run in range(runs))
    return Row(question, "runs/s", 1 / mine, None, None, "", runs, floor=COLD_START)


def seconds(out: str, source: str, *, device: str = "cpu", updates: int | None = None) -> float:
    """From the start of the process to its end."""
    command = [sys.executable, "-m", "offline_cli", "train-bc", source, "--env", "CartPole-v1", "--device", device]
    command += ["--until-return", "450"] if updates is None else ["--updates", str(updates)]
    start = time.perf_counter()
    subprocess.run([*command, "--out", out, "--quiet"], check=True, stdout=subprocess.DEVNULL, cwd=HERE.parent)
    return time.perf_counter() - start
