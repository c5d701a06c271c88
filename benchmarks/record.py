"""How fast are episodes recorded? Rival: the bare loop of environment and policy, which keeps nothing.

Same environment, same weights, one torch thread on both sides, everything in this process. Ours is the whole command but for
starting Python: opening the environment, playing, writing Parquet, commit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from benchmarks import record_policies
from benchmarks.floors import Floor
from benchmarks.harness import Row, paired, versions
from benchmarks.targets import NO_TARGET, Target
from offline_cli.modules.policy_modules import FeedForwardPolicy
from offline_cli.modules.rl_module import RLModule
from offline_cli.recording.record import record

CARTPOLE, ACROBOT = "CartPole-v1", "Acrobot-v1"
OWN, SLOTS, STEPS = "vector_entry_point", 64, 1_000_000
OWN_CLASS = Target(0.7, words=">= 0.7 of the bare loop")
RANDOM = Target(0.5, words=">= 0.5 of the bare loop")
SYNC = Target(0.8, words=">= 0.8 of the bare sync loop")
Loop = Callable[[str, RLModule, int], None]


def rows() -> list[Row]:
    torch.set_num_threads(1)
    return [
        one(CARTPOLE, "BALANCING", OWN, own_loop, episodes=600, pairs=9, target=OWN_CLASS),
        one(CARTPOLE, "UNTRAINED", OWN, own_loop, episodes=10_000, pairs=5),
        one(CARTPOLE, "BALANCING", "sync", gymnasium_loop, episodes=300, pairs=5),
        one(CARTPOLE, "BALANCING", "sync", sync_loop, episodes=300, pairs=7, target=SYNC),
        one(ACROBOT, "SWINGING", "sync", gymnasium_loop, episodes=200, pairs=5),
        one(ACROBOT, "SWINGING", "sync", sync_loop, episodes=200, pairs=5, target=SYNC),
        random_play(),
    ]


def random_play() -> Row:
    """A million steps of the policy `random`, short episodes all of them."""
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"policy": "random", "num_envs": SLOTS, "device": "cpu", "overwrite": True}
        return paired(
            f"record {CARTPOLE}, --policy random, {OWN}, {SLOTS} envs, {STEPS:,} steps",
            amount=STEPS,
            unit="steps/s",
            ours=lambda: record(CARTPOLE, Path(folder) / "D", steps=STEPS, **options),
            rival=random_loop,
            rival_name=f"the bare loop over its vector class ({versions('gymnasium')})",
            floor=Floor("the rival: the environment's steps"),
            target=RANDOM,
            pairs=5,
        )


def one(env: str, policy: str, vectorize: str, loop: Loop, *, episodes: int, pairs: int, target: Target = NO_TARGET) -> Row:
    """Ours records `episodes`; the rival makes as many steps."""
    with tempfile.TemporaryDirectory() as folder:
        ours = partial(recorded, env, policy, vectorize, episodes, Path(folder) / "D")
        steps = ours()
        played = f"{env}, MLP 64x64 ({policy.lower()}), {vectorize}, {SLOTS} envs"
        return paired(
            f"record {played}, {episodes:,} episodes of {steps / episodes:.0f} steps",
            amount=steps,
            unit="steps/s",
            ours=ours,
            rival=partial(loop, env, getattr(record_policies, policy), -(-steps // SLOTS)),
            rival_name=f"{RIVALS[loop]} ({versions('gymnasium', 'torch')})",
            floor=Floor("the rival: the environment's steps and the forward pass"),
            target=target,
            pairs=pairs,
        )


def recorded(env: str, policy: str, vectorize: str, episodes: int, out: Path) -> int:
    """Record over what is there; the number of steps."""
    name = f"python:benchmarks.record_policies:{policy}"
    options: dict[str, Any] = {"policy": name, "num_envs": SLOTS, "vectorize": vectorize, "device": "cpu", "overwrite": True}
    return record(env, out, episodes=episodes, **options).steps


# ---- the rival ----


def own_loop(env: str, policy: RLModule, steps: int) -> None:
    """The environment's own vector class, which resets itself."""
    vector_loop(gym.make_vec(env, SLOTS, vectorization_mode=OWN), policy, steps)


def random_loop() -> None:
    """Random actions, and nothing kept."""
    vector, rng = gym.make_vec(CARTPOLE, SLOTS, vectorization_mode=OWN), np.random.default_rng(0)
    vector.reset(seed=0)
    for _ in range(-(-STEPS // SLOTS)):
        vector.step(rng.integers(0, 2, SLOTS))
    vector.close()


def gymnasium_loop(env: str, policy: RLModule, steps: int) -> None:
    """gymnasium's own way to step copies in turn."""
    vector_loop(gym.make_vec(env, SLOTS, vectorization_mode="sync"), policy, steps)


def vector_loop(vector: gym.vector.VectorEnv[Any, Any, Any], policy: RLModule, steps: int) -> None:
    net = bare_network(policy)
    observations, _ = vector.reset(seed=0)
    with torch.inference_mode():
        for _ in range(steps):
            actions = net(torch.from_numpy(observations)).argmax(-1).numpy()
            observations, _, _, _, _ = vector.step(actions)
    vector.close()


def sync_loop(env: str, policy: RLModule, steps: int) -> None:
    """Copies in turn, as one would write it down: reset at the end, no wrapper in between, nothing kept."""
    net, copies = bare_network(policy), [gym.make(env, disable_env_checker=True) for _ in range(SLOTS)]
    observations = np.stack([copy.reset(seed=seed)[0] for seed, copy in enumerate(copies)])
    with torch.inference_mode():
        for _ in range(steps):
            actions = net(torch.from_numpy(observations)).argmax(-1).numpy()
            for slot, copy in enumerate(copies):
                observations[slot], _, terminated, truncated, _ = copy.step(actions[slot])
                if terminated or truncated:
                    observations[slot], _ = copy.reset()
    for copy in copies:
        copy.close()  # type: ignore[no-untyped-call]


RIVALS: dict[Loop, str] = {
    own_loop: "the bare loop over its vector class and the policy",
    gymnasium_loop: "the bare loop over gymnasium's SyncVectorEnv and the policy",
    sync_loop: "the bare loop over the copies and the policy, by hand",
}


def bare_network(policy: RLModule) -> nn.Module:
    """Its layers alone."""
    assert isinstance(policy, FeedForwardPolicy)
    return policy.network.eval()
