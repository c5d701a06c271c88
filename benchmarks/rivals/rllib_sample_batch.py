"""RLlib: SampleBatch JSON to packed episodes, by its own parser and splitter, in one process, without Ray Data.

The page's own way, OfflinePreLearner, makes one episode of a line that holds several, so this is the least that a user has
to write instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgpack
import msgpack_numpy
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.json_reader import from_json_data
from serving import serve


def prepare(files: list[str]) -> Callable[[], float]:
    return lambda: sum(convert(Path(file)) for file in files)


def convert(file: Path) -> int:
    steps = 0
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            batch = from_json_data(json.loads(line), None)
            for piece in batch.policy_batches["default_policy"].split_by_episode():
                episode = SingleAgentEpisode(
                    id_=str(piece["eps_id"][0]),
                    observations=[*piece["obs"], piece["new_obs"][-1]],
                    actions=list(piece["actions"]),
                    rewards=list(piece["rewards"]),
                    terminated=bool(piece["terminateds"][-1]),
                    len_lookback_buffer=0,
                )
                msgpack.packb(episode.get_state(), default=msgpack_numpy.encode)
                steps += len(piece)
    return steps


if __name__ == "__main__":
    serve(prepare, "ray", "msgpack-numpy")
