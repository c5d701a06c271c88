"""RLlib: packed columns to packed episodes, by the loop of its page "Working with offline data".

The page leaves out that packed cells have to be unpacked; that is done here as RLlib's own reader does it.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgpack
import msgpack_numpy
import pyarrow.parquet as pq
from ray import data
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.compression import unpack_if_needed
from serving import serve

EXTRA = ("action_dist_inputs", "action_logp")
CHUNK = 50  # episodes that the page writes at a time


def prepare(files: list[str]) -> Callable[[], float]:
    rows = sum(pq.read_metadata(file).num_rows for file in files)

    def run() -> float:
        convert(files)
        return rows

    return run


def convert(files: list[str]) -> None:
    with tempfile.TemporaryDirectory() as out:
        chunk: list[bytes] = []
        for number, packed in enumerate(packed_episodes(data.read_parquet(files).iter_rows())):
            chunk.append(packed)
            if len(chunk) == CHUNK:
                data.from_items(chunk).write_parquet(f"{out}/file-{number}", compression="gzip")
                chunk = []
        if chunk:
            data.from_items(chunk).write_parquet(f"{out}/file-last", compression="gzip")


def packed_episodes(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    obs: list[Any] = []
    actions: list[Any] = []
    rewards: list[Any] = []
    extra: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        obs.append(unpack_if_needed(row["obs"]))
        actions.append(unpack_if_needed(row["actions"]))
        rewards.append(row["rewards"])
        for name in EXTRA:
            extra[name].append(row[name])
        if row["terminateds"] or row["truncateds"]:
            obs.append(unpack_if_needed(row["new_obs"]))
            episode = SingleAgentEpisode(
                id_=row["eps_id"],
                agent_id=row["agent_id"],
                module_id=row["module_id"],
                observations=obs,
                actions=actions,
                rewards=rewards,
                terminated=row["terminateds"],
                truncated=row["truncateds"],
                t_started=0,
                len_lookback_buffer=0,
                extra_model_outputs=extra,
            )
            yield msgpack.packb(episode.get_state(), default=msgpack_numpy.encode)
            obs, actions, rewards, extra = [], [], [], defaultdict(list)


if __name__ == "__main__":
    serve(prepare, "ray", "pyarrow")
