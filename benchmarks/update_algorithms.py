"""What does one update of each algorithm cost on the CPU? Rivals: a bare PyTorch loop of the same mathematics, and d3rlpy.

17 observations, 6 actions, batches of 256 drawn from 50,000 steps by all, two layers of 256, one thread. The bare loop has
torch's own Adam, and draws a permutation an epoch, as ours does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from benchmarks.harness import Missing, Row, missing, paired_rates, timed, versions
from benchmarks.rival_process import Rival
from benchmarks.targets import NO_TARGET, Target
from offline_cli.modules.network import Mlp
from offline_cli.training.algorithms.algorithm import algorithm_kind
from offline_cli.training.config import filled
from offline_cli.training.learner import Setup
from offline_cli.training.loader import StepLoader
from offline_cli.training.memory_store import MemoryStore
from offline_cli.training.updates import Update, captured

OBS, ACTIONS, HIDDEN, BATCH, HELD, LR = 17, 6, (256, 256), 256, 50_000, 3e-4
PER_PAIR, PAIRS = 40, 12
CPU = torch.device("cpu")
GAMMA, TAU = 0.99, 0.005
TARGET = Target(1 / 1.15, words="<= 1.15x a bare PyTorch loop")
QUESTION = "one update of {} on the CPU, MLP 256x256, batch 256, 1 thread, batches drawn"
Step = Callable[[], None]


def rows() -> list[Row]:
    torch.set_num_threads(1)
    return [*(bare(name) for name in BARE), *(library(name) for name in ("iql", "td3-bc"))]


def bare(name: str) -> Row:
    return paired_rates(
        QUESTION.format(name),
        unit="updates/s",
        ours=repeated(our_update(name)),
        rival=repeated(BARE[name]()),
        rival_name=f"a bare PyTorch loop ({versions('torch')})",
        target=TARGET,
        pairs=PAIRS,
        warm_ups=2,
    )


def library(name: str) -> Row:
    question = QUESTION.format(name)
    given: dict[str, Any] = {
        "algorithm": name,
        "obs": OBS,
        "actions": ACTIONS,
        "hidden": HIDDEN,
        "batch": BATCH,
        "held": HELD,
        "updates": PER_PAIR,
    }
    try:
        with Rival("d3rlpy_update.py", "d3rlpy", **given) as rival:
            ours = repeated(our_update(name))
            return paired_rates(
                question, unit="updates/s", ours=ours, rival=rival, rival_name=rival.versions, target=NO_TARGET, pairs=7
            )
    except Missing as error:
        return missing(question, error, unit="updates/s", rival_name="d3rlpy")


def repeated(update: Step) -> Callable[[], float]:
    def run() -> None:
        for _ in range(PER_PAIR):
            update()

    return timed(run, PER_PAIR)


def columns() -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(HELD, *shape, generator=chance)

    return {
        "obs": normal(OBS),
        "actions": torch.tanh(normal(ACTIONS)),
        "rewards": normal(),
        "terminateds": normal() > 2,
        "new_obs": normal(OBS),
        "value_targets": normal(),
    }


def our_update(name: str, device: torch.device = CPU) -> Step:
    """A batch drawn, an update, as `train` does: captured on a GPU, eager on the CPU."""
    options = {key: value for key, value in filled("algorithm", {"name": name}).items() if key != "name"}
    algorithm = algorithm_kind(name)(options)
    network = Mlp({"hidden": HIDDEN, "activation": "relu"})
    seen = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    learner = Setup(algorithm, network).learner(seen, spaces.Box(-1, 1, (ACTIONS,), np.float32), "env")
    held = {key: value for key, value in columns().items() if key in algorithm.columns}
    learner.to(device)
    loader = StepLoader(MemoryStore(held), batch_size=BATCH, seed=0, device=device)
    return trained_as_ours(learner, loader, device)


def trained_as_ours(learner: Any, loader: StepLoader, device: torch.device, lr: float = LR) -> Step:
    """A batch drawn, an update, as `train` does: captured on a GPU, eager on the CPU."""
    update, numbers = Update(learner, loader.batch, lr=lr), count()
    loader.fill(0)
    launch = captured(update) if device.type == "cuda" else update

    def step() -> None:
        number = next(numbers)
        loader.fill(number)
        launch(number)

    return step


# ---- the same mathematics, bare ----


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    first, second = HIDDEN
    return nn.Sequential(nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, outputs))


def adam(*networks: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam([parameter for network in networks for parameter in network.parameters()], lr=LR)


def drawn() -> Callable[[], dict[str, Tensor]]:
    """Batches, a permutation an epoch."""
    held, order, at = columns(), torch.empty(0, dtype=torch.int64), 0

    def batch() -> dict[str, Tensor]:
        nonlocal order, at
        if at + BATCH > len(order):
            order, at = torch.randperm(HELD), 0
        chosen, at = order[at : at + BATCH], at + BATCH
        return {name: column[chosen] for name, column in held.items()}

    return batch


def stepped(optimizer: torch.optim.Adam, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@torch.no_grad()
def moved(targets: Sequence[nn.Module], sources: Sequence[nn.Module]) -> None:
    for target, source in zip(targets, sources, strict=True):
        for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
            mine.lerp_(theirs, TAU)


def logp(outputs: Tensor, actions: Tensor, low: float, high: float, *, tanh: bool) -> Tensor:
    mean, log_std = outputs.chunk(2, -1)
    mean, log_std = torch.tanh(mean) if tanh else mean, log_std.clamp(low, high)
    z = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def q(critic: nn.Module, obs: Tensor, actions: Tensor) -> Tensor:
    found: Tensor = critic(torch.cat([obs, actions], -1))
    return found[:, 0]


def bare_bc() -> Step:
    policy, batches = mlp(OBS, 2 * ACTIONS), drawn()
    optimizer = adam(policy)

    def step() -> None:
        batch = batches()
        stepped(optimizer, -logp(policy(batch["obs"]), batch["actions"], math.log(0.05), 2.0, tanh=False).mean())

    return step


def bare_marwil() -> Step:
    policy, value, batches = mlp(OBS, 2 * ACTIONS), mlp(OBS, 1), drawn()
    optimizer, norm = adam(policy, value), torch.tensor(100.0)

    def step() -> None:
        batch = batches()
        advantages = batch["value_targets"] - value(batch["obs"])[:, 0]
        squared = advantages.square().mean()
        with torch.no_grad():
            norm.lerp_(squared, 1e-8)
            counts = torch.exp(advantages / (norm.sqrt() + 1e-8))
        likely = logp(policy(batch["obs"]), batch["actions"], math.log(0.05), 2.0, tanh=False)
        stepped(optimizer, -(likely * counts).mean() + 0.5 * squared)

    return step


def bare_iql() -> Step:
    policy, value, batches = mlp(OBS, 2 * ACTIONS), mlp(OBS, 1), drawn()
    critics, targets = ([mlp(OBS + ACTIONS, 1) for _ in range(2)] for _ in range(2))
    critical, acting = adam(value, *critics), adam(policy)

    def step() -> None:
        batch = batches()
        obs, actions = batch["obs"], batch["actions"]
        with torch.no_grad():
            wanted = batch["rewards"] + GAMMA * (~batch["terminateds"]) * value(batch["new_obs"])[:, 0]
            worth = torch.minimum(*(q(target, obs, actions) for target in targets))
        above = worth - value(obs)[:, 0]
        expectile = (torch.where(above > 0, 0.7, 0.3) * above.square()).mean()
        stepped(critical, expectile + sum((q(critic, obs, actions) - wanted).square().mean() for critic in critics))
        with torch.no_grad():
            counts = torch.exp(3.0 * (worth - value(obs)[:, 0])).clamp(max=100.0)
        stepped(acting, -(logp(policy(obs), actions, -5.0, 2.0, tanh=True) * counts).mean())
        moved(targets, critics)

    return step


def bare_td3_bc() -> Step:
    policy, slow, batches, numbers = mlp(OBS, 2 * ACTIONS), mlp(OBS, 2 * ACTIONS), drawn(), count(1)
    critics, targets = ([mlp(OBS + ACTIONS, 1) for _ in range(2)] for _ in range(2))
    critical, acting = adam(*critics), adam(policy)

    def mean(network: nn.Module, obs: Tensor) -> Tensor:
        return torch.tanh(network(obs).chunk(2, -1)[0])

    def step() -> None:
        batch = batches()
        obs, actions = batch["obs"], batch["actions"]
        with torch.no_grad():
            following = mean(slow, batch["new_obs"])
            following = (following + (torch.randn_like(following) * 0.2).clamp(-0.5, 0.5)).clamp(-1, 1)
            best = torch.minimum(*(q(target, batch["new_obs"], following) for target in targets))
            wanted = batch["rewards"] + GAMMA * (~batch["terminateds"]) * best
        first, second = ((q(critic, obs, actions) - wanted).square().mean() for critic in critics)
        stepped(critical, first + second)
        if next(numbers) % 2 == 0:
            chosen = mean(policy, obs)
            found = q(critics[0], obs, chosen)
            stepped(acting, -2.5 / found.detach().abs().mean() * found.mean() + (chosen - actions).square().mean())
            moved([*targets, slow], [*critics, policy])

    return step


BARE: dict[str, Callable[[], Any]] = {"bc": bare_bc, "marwil": bare_marwil, "iql": bare_iql, "td3-bc": bare_td3_bc}
