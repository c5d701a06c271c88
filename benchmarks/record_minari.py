"""How much faster are episodes recorded than through Minari's DataCollector? The same policy and environment on both sides."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from benchmarks import record_policies
from benchmarks.floors import measured_floor
from benchmarks.harness import Missing, Row, missing, paired_rates, timed
from benchmarks.record import CARTPOLE, SLOTS, recorded, sync_loop
from benchmarks.rival_process import Rival

EPISODES, LENGTH, THEIR_EPISODES = 300, 500, 10


def rows() -> list[Row]:
    torch.set_num_threads(1)
    question = f"record {CARTPOLE}, MLP 64x64, sync, {SLOTS} envs, {EPISODES} episodes of {LENGTH} steps"
    steps = EPISODES * LENGTH
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            Rival("minari_record.py", "rllib", episodes=THEIR_EPISODES) as rival,
        ):
            out = Path(folder) / "D"
            row = paired_rates(
                question,
                unit="steps/s",
                ours=timed(lambda: recorded(CARTPOLE, "BALANCING", "sync", EPISODES, out), steps),
                rival=rival,
                rival_name=f"Minari's DataCollector, one environment ({rival.versions})",
                floor=measured_floor("the bare loop over the copies and the policy", bare, steps),
                pairs=3,
            )
    except Missing as error:
        row = missing(question, error, unit="steps/s", rival_name="Minari's DataCollector")
    return [row]


def bare() -> None:
    sync_loop(CARTPOLE, record_policies.BALANCING, EPISODES * LENGTH // SLOTS)
