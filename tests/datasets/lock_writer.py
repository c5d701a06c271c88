"""Writers in processes of their own, whose beats are quick: `python lock_writer.py FOLDER HOW EPISODES PAUSE RIVALS`.

RIVALS are forked at one moment, when all that they need is loaded; prints their exit codes. PAUSE: seconds between episodes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np
from gymnasium import spaces

from offline_cli.datasets import lease_record
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import OfflineCliError
from offline_cli.storage.locations import open_location

SPACE, ACTIONS = spaces.Box(-1, 1, (4,), np.float64), spaces.Discrete(2)


def episode(number: int) -> EpisodeBatch:
    rng = np.random.default_rng(number)
    return EpisodeBatch(
        ids=(f"episode-{number}",),
        starts=np.array([0, 3]),
        obs=rng.random((4, 4)),
        actions=rng.integers(0, 2, 3),
        rewards=rng.random(3),
        terminated=np.array([True]),
        truncated=np.array([False]),
        observation_space=SPACE,
        action_space=ACTIONS,
    )


def write(folder: str, how: str, episodes: int, pause: float) -> None:
    with DatasetWriter(
        open_location(folder),
        format="columns",
        observation_space=SPACE,
        action_space=ACTIONS,
        action_scale="env",
        max_rows_per_file=3,
        resume=how == "resume",
        overwrite=how == "overwrite",
    ) as writer:
        for number in range(writer.episodes_written, episodes):
            writer.write(episode(number))
            time.sleep(pause)
        writer.commit()


def run(folder: str, how: str, episodes: int, pause: float) -> int:
    try:
        write(folder, how, episodes, pause)
    except OfflineCliError as error:
        print(error, file=sys.stderr)
        return {"locked": 5, "taken-over": 55}.get(error.code, error.exit_code)
    return 0


def race(rivals: int, *of: Any) -> list[int]:
    """The exit codes of so many processes that begin at once."""
    start, children = time.monotonic() + 0.3, []
    for _ in range(rivals):
        child = os.fork()
        if not child:
            time.sleep(max(0.0, start - time.monotonic()))
            os._exit(run(*of))
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    lease_record.BEAT, lease_record.STALE, lease_record.WATCH = 0.1, 1.0, 0.3
    options = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    rivals = int(sys.argv[5])
    if rivals == 1:
        sys.exit(run(*options))
    print(json.dumps(race(rivals, *options)))
