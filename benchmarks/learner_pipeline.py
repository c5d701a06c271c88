"""How long does the default learner pipeline take, episodes to train batch? Rival: RLlib's, on the same numpy'ized episodes.

Both make tensors on the CPU of like data: observations of 4 float32, two actions. Ours takes them as our readers give them, an
EpisodeBatch, and as a list of single episodes, as RLlib's does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium.spaces import Space

from benchmarks.floors import bytes_floor
from benchmarks.harness import Missing, Row, missing, paired_rates, timed
from benchmarks.read_episodes import episodes
from benchmarks.rival_process import Rival
from benchmarks.targets import NO_TARGET, Target
from offline_cli.connectors import learner_pipeline
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.modules import build_recurrent_module

STEPS = 500
STEP_BYTES = 4 * 4 + 8  # an observation and an action
TARGET = Target(15, words=">= 15x RLlib's")


def rows() -> list[Row]:
    numbers = (100, 1000)
    return [
        *(row(number, "an EpisodeBatch", lambda batch: batch) for number in numbers),
        *(row(number, "a list of episodes", list) for number in numbers),
        row(100, "an EpisodeBatch", lambda batch: batch, stateful=True),
    ]


def row(number: int, form: str, given: Callable[[EpisodeBatch], Any], *, stateful: bool = False) -> Row:
    batch = episodes(STEPS, number)
    seen, done = batch.observation_space, batch.action_space
    assert isinstance(seen, Space) and isinstance(done, Space)  # noqa: PT018  # one fact: made data has spaces
    mine, pipeline = given(batch), learner_pipeline(seen, done)
    module = build_recurrent_module(seen, done, lstm_size=8) if stateful else None
    kind = "LSTM of 20 timesteps" if stateful else "stateless"
    question = f"learner pipeline ({kind}) on {number} episodes of {STEPS} steps, {form}"
    target = TARGET if number == 100 and not stateful and form == "an EpisodeBatch" else NO_TARGET
    try:
        with Rival("rllib_pipeline.py", "rllib", number=number, length=STEPS, stateful=stateful) as rival:
            return paired_rates(
                question,
                unit="steps/s",
                ours=timed(lambda: pipeline(rl_module=module, episodes=mine), batch.num_steps),
                rival=rival,
                rival_name=f"RLlib's ({rival.versions})",
                floor=bytes_floor(STEP_BYTES, "step"),
                target=target,
                pairs=9 if number == 100 else 5,
            )
    except Missing as error:
        return missing(question, error, unit="steps/s", rival_name="RLlib's", target=target)
