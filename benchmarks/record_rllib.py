"""How much faster are episodes recorded than by RLlib with 2 env runners?

The same policy and episodes of 500 steps on both sides. Ours is the whole command but for starting Python; RLlib's is one
evaluation, after Ray has started and its runners are warm. The budget is held against RLlib's default, one environment in each
runner, which is what its figure of 1,495 steps/s is of; many in each are several times faster, and are shown too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from benchmarks import record_policies
from benchmarks.floors import measured_floor
from benchmarks.harness import Missing, Row, missing, paired_rates, timed
from benchmarks.record import CARTPOLE, OWN, SLOTS, own_loop, recorded
from benchmarks.rival_process import Rival
from benchmarks.targets import NO_TARGET, Target

EPISODES, LENGTH = 600, 500
RUNNERS, THEIR_EPISODES = 2, 20
TARGET = Target(100, words=">= 100x RLlib, 2 runners")


def rows() -> list[Row]:
    torch.set_num_threads(1)
    return [against(envs) for envs in (1, SLOTS // RUNNERS)]


def against(envs: int) -> Row:
    """RLlib with that many environments in each runner: 1 is its default."""
    question = f"record {CARTPOLE}, MLP 64x64, {OWN}, {SLOTS} envs, {EPISODES} episodes of {LENGTH} steps"
    name = f"RLlib, {RUNNERS} env runners of {envs} env{'s' * (envs > 1)}"
    steps = EPISODES * LENGTH
    theirs, target = max(THEIR_EPISODES, RUNNERS * envs), TARGET if envs == 1 else NO_TARGET
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            Rival("rllib_record.py", "rllib", runners=RUNNERS, envs=envs, episodes=theirs) as rival,
        ):
            out = Path(folder) / "D"
            return paired_rates(
                question,
                unit="steps/s",
                ours=timed(lambda: recorded(CARTPOLE, "BALANCING", OWN, EPISODES, out), steps),
                rival=rival,
                rival_name=f"{name} ({rival.versions})",
                floor=measured_floor("the bare loop of environment and policy", bare, steps),
                target=target,
                pairs=3,
            )
    except Missing as error:
        return missing(question, error, unit="steps/s", rival_name=name, target=target)


def bare() -> None:
    own_loop(CARTPOLE, record_policies.BALANCING, EPISODES * LENGTH // SLOTS)
