"""What does one update of a policy with memory cost? Rival: a bare PyTorch loop over the same padded sequences.

17 observations, 6 actions; episodes of 1 to 199 steps, cut into sequences of 20; 64 sequences a batch, one hidden layer of 256
and 256 cells. The bare loop has torch's own Adam, and draws a permutation of the same padded sequences an epoch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from benchmarks.cuda_training import card, card_name, rate_of
from benchmarks.harness import Missing, Rate, Row, missing, paired_rates, timed, versions
from benchmarks.targets import Target
from benchmarks.update_algorithms import Step, adam, logp, stepped, trained_as_ours
from offline_cli.connectors.common.states_and_time import Cut
from offline_cli.modules.network import Mlp
from offline_cli.training.algorithms.algorithm import algorithm_kind
from offline_cli.training.learner import Setup
from offline_cli.training.loader import StepLoader
from offline_cli.training.memory_store import MemoryStore

OBS, ACTIONS, HIDDEN, MEMORY, LENGTH, SEQUENCES, LR = 17, 6, 256, 256, 20, 64, 3e-4
EPISODES, LONGEST, COUNT, PER_PAIR, PAIRS = 300, 200, 500, 8, 12
CPU = torch.device("cpu")
TARGET = Target(1 / 1.1, words="<= 1.1x a bare PyTorch loop")
QUESTION = f"one update of bc with {{}} cells on the {{}}, {SEQUENCES} sequences of {LENGTH} steps, {HIDDEN} and {MEMORY} wide"


def rows() -> list[Row]:
    torch.set_num_threads(1)
    return [*(on_cpu(memory) for memory in ("lstm", "gru")), on_gpu("lstm")]


def on_cpu(memory: str) -> Row:
    return paired_rates(
        QUESTION.format(memory, "CPU, 1 thread"),
        unit="updates/s",
        ours=repeated(our_update(memory)),
        rival=repeated(bare_update(memory)),
        rival_name=f"a bare PyTorch loop ({versions('torch')})",
        target=TARGET,
        pairs=PAIRS,
        warm_ups=2,
    )


def repeated(update: Step) -> Rate:
    def run() -> None:
        for _ in range(PER_PAIR):
            update()

    return timed(run, PER_PAIR)


def on_gpu(memory: str) -> Row:
    question = QUESTION.format(memory, "GPU")
    try:
        device = card()
    except Missing as error:
        return missing(question, error, unit="updates/s")
    return Row(question, "updates/s", rate_of(our_update(memory, device), COUNT, device)(), None, None, "", card_name(), 1)


def sequences() -> dict[str, Tensor]:
    """Observations, actions and masks (S, T, ...), the same each time."""
    chance = np.random.default_rng(0)
    cut = Cut.of(chance.integers(1, LONGEST, EPISODES), LENGTH)
    obs = chance.normal(size=(cut.timesteps, OBS)).astype(np.float32)
    padded = {"obs": cut.pad("obs", obs), "actions": cut.pad("actions", np.tanh(obs[:, :ACTIONS])), "loss_mask": cut.own}
    return {name: torch.from_numpy(np.asarray(column)) for name, column in padded.items()}


def our_update(memory: str, device: torch.device = CPU) -> Step:
    """A batch drawn, an update, as `train` does: captured on a GPU, eager on the CPU."""
    options: dict[str, Any] = {"memory": memory, "memory_size": MEMORY, "max_seq_len": LENGTH}
    network = Mlp({"hidden": (HIDDEN,), "activation": "relu", **options})
    seen = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    learner = Setup(algorithm_kind("bc")({}), network).learner(seen, spaces.Box(-1, 1, (ACTIONS,), np.float32), "env")
    before = learner.before_sequences()
    learner.to(device)
    store = MemoryStore(sequences())
    loader = StepLoader(store, batch_size=SEQUENCES * LENGTH, seed=0, device=device, before=before)
    return trained_as_ours(learner, loader, device, LR)


def bare_update(memory: str) -> Step:
    """The same mathematics, bare."""
    held, hidden, last = sequences(), nn.Linear(OBS, HIDDEN), nn.Linear(MEMORY, 2 * ACTIONS)
    cells: Any = getattr(nn, memory.upper())(HIDDEN, MEMORY, batch_first=True)
    optimizer, order, at = adam(hidden, cells, last), torch.empty(0, dtype=torch.int64), 0

    def step() -> None:
        nonlocal order, at
        if at + SEQUENCES > len(order):
            order, at = torch.randperm(len(held["obs"])), 0
        chosen, at = order[at : at + SEQUENCES], at + SEQUENCES
        obs, actions, mask = (held[name][chosen] for name in ("obs", "actions", "loss_mask"))
        outputs = last(cells(torch.relu(hidden(obs)))[0])
        likely = logp(outputs, actions, math.log(0.05), 2.0, tanh=False)
        stepped(optimizer, -(likely * mask).sum() / mask.sum())

    return step
