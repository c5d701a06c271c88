"""How long does the default learner pipeline take, episodes to train batch? Rival: RLlib's, on the same numpy'ized episodes.

Both make tensors on the CPU of like data: observations of 4 float32, two actions.
"""

from __future__ import annotations

from benchmarks.harness import Floor, Row, against, timed
from benchmarks.read_episodes import episodes
from offline_cli.connectors import learner_pipeline

NUMBER, LENGTH = 100, 500
TIMES = 20  # in a row, as a learner calls it: one call takes less time than a processor takes to wake up
FLOOR = Floor(50, words=">= 50x RLlib's")


def rows(small: bool = False) -> list[Row]:
    number = 1 if small else NUMBER
    batch = episodes(LENGTH, number)
    made = learner_pipeline(batch.observation_space, batch.action_space)  # type: ignore[arg-type]  # made data has spaces

    def several() -> None:
        for _ in range(TIMES):
            made(rl_module=None, episodes=batch)

    return [
        against(
            "rllib_pipeline.py",
            f"learner pipeline (stateless) on {number} episodes of {LENGTH} steps, an EpisodeBatch, {TIMES} times in a row",
            timed(several, TIMES * batch.num_steps),
            unit="steps/s",
            rival_name="RLlib's",
            floor=FLOOR,
            pairs=1 if small else 9,
            number=number,
            length=LENGTH,
            times=TIMES,
        )
    ]
