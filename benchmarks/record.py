"""How fast are episodes recorded? Rivals: RLlib with two env runners, a bare loop over SyncVectorEnv, and play without pieces.

Same environment and policy, one torch thread on both sides. Ours is the whole command but for starting Python: opening the
environment, playing, writing Parquet, commit. RLlib's is one evaluation, after Ray has started and its runners are warm.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from benchmarks.harness import Floor, Row, against, paired, timed, versions
from offline_cli import record, train_bc
from offline_cli.modules.policy_modules import FeedForwardPolicy, build_module
from offline_cli.modules.rl_module import RLModule

ENV, SLOTS, LENGTH = "CartPole-v1", 64, 500
RLLIB = {1: Floor(35, words=">= 35x RLlib, 2 runners of 1"), 32: Floor(3, words=">= 3x RLlib, 2 runners of 32")}
BARE = Floor(0.7, words=">= 0.7 of the bare loop")
PIECES = Floor(0.2, words=">= 0.2 of the speed without pieces")
PIPELINE = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 4\n'


def balancing() -> RLModule:
    """An MLP 64x64 with weights set by hand, the same on every machine: the pole stays up for 500 steps (rivals/data.py)."""
    with gym.make(ENV) as made:
        module = build_module(made.observation_space, made.action_space, hidden=(64, 64), action_scale="env", seed=0)
    assert isinstance(module, FeedForwardPolicy)
    first, second, last = (layer for layer in module.network if isinstance(layer, nn.Linear))
    with torch.no_grad():
        for parameter in module.network.parameters():
            parameter.mul_(1e-3)
        for unit, sign in ((0, 1.0), (1, -1.0)):
            first.weight[unit] = sign * torch.tensor([0.02, 0.2, 1.0, 0.5])  # place, speed, angle, its speed
            second.weight[unit, unit] = 1.0
        last.weight[1, 0] = last.weight[0, 1] = 1.0
    return module


BALANCING = balancing()


def single_cartpole() -> Any:
    """CartPole without its vector class."""
    return gym.make(ENV, disable_env_checker=True)


def rows(small: bool = False) -> list[Row]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [
            bare_loop(folder, 2 if small else 300, 1 if small else 7),
            *(rllib(folder, envs, 2 if small else 600, 1 if small else 3) for envs in RLLIB),
            through_pieces(folder, 2 if small else 160, 1 if small else 5),
        ]


def recorded(env: str, policy: str, episodes: int, out: Path, **options: Any) -> int:
    """Record over what is there; the number of steps."""
    return record(env, out, policy=policy, episodes=episodes, device="cpu", overwrite=True, **options).steps


def rllib(folder: Path, envs: int, episodes: int, pairs: int) -> Row:
    """RLlib with that many environments in each runner: 1 is its default."""
    ours = partial(recorded, ENV, "python:benchmarks.record:BALANCING", episodes, folder / "D", num_envs=SLOTS)
    return against(
        "rllib_record.py",
        f"record {ENV}, MLP 64x64, {SLOTS} envs, {episodes} episodes of {LENGTH} steps",
        timed(ours, episodes * LENGTH),
        unit="steps/s",
        rival_name=f"RLlib, 2 env runners of {envs} env{'s' * (envs > 1)}",
        floor=RLLIB[envs],
        pairs=pairs,
        runners=2,
        envs=envs,
        episodes=max(20, 2 * envs),
    )


def bare_loop(folder: Path, episodes: int, pairs: int) -> Row:
    options: dict[str, Any] = {"num_envs": SLOTS}
    ours = partial(recorded, ENV, "python:benchmarks.record:BALANCING", episodes, folder / "D", **options)
    steps = episodes * LENGTH
    return paired(
        f"record {ENV}, MLP 64x64 (balancing), sync, {SLOTS} envs, {episodes} episodes of {LENGTH} steps",
        timed(ours, steps),
        timed(lambda: gymnasium_loop(-(-steps // SLOTS)), steps),
        unit="steps/s",
        rival_name=f"the bare loop over gymnasium's SyncVectorEnv and the policy ({versions('gymnasium', 'torch')})",
        floor=BARE,
        pairs=pairs,
    )


def gymnasium_loop(steps: int) -> None:
    assert isinstance(BALANCING, FeedForwardPolicy)
    vector, net = gym.make_vec(ENV, SLOTS, vectorization_mode="sync"), BALANCING.network.eval()
    observations, _ = vector.reset(seed=0)
    with torch.inference_mode():
        for _ in range(steps):
            observations, _, _, _, _ = vector.step(net(torch.from_numpy(observations)).argmax(-1).numpy())
    vector.close()


def through_pieces(folder: Path, episodes: int, pairs: int) -> Row:
    """Two runs that learned from one recording, through a filter and stacked frames and without, record whole episodes."""
    (folder / "pipeline.toml").write_text(PIPELINE, encoding="utf-8")
    recorded(ENV, "python:benchmarks.record:BALANCING", min(episodes, 100), folder / "expert", num_envs=SLOTS)
    for name, pipeline in (("plain", None), ("pieces", str(folder / "pipeline.toml"))):
        options: dict[str, Any] = {"batch_size": 256, "updates": 400 if episodes > 2 else 2, "seed": 0, "device": "cpu"}
        train_bc(str(folder / "expert"), str(folder / name), hidden=[64, 64], pipeline=pipeline, **options)

    def rate(name: str) -> float:
        """Each policy has its own number of steps."""
        steps = 0

        def play() -> None:
            nonlocal steps
            cartpole, out = "python:benchmarks.record:single_cartpole", folder / f"{name}-recorded"
            steps = recorded(cartpole, str(folder / name), episodes, out, num_envs=16)

        calls_per_second = timed(play, 1)()
        return steps * calls_per_second

    return paired(
        f"record {ENV} through a filter and 4 stacked frames, MLP 64x64, sync, 16 envs",
        partial(rate, "pieces"),
        partial(rate, "plain"),
        unit="steps/s",
        rival_name="the same without pieces",
        floor=PIECES,
        pairs=pairs,
    )
