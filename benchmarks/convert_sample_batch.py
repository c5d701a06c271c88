"""How fast is SampleBatch JSON made into whole episodes? Rivals: json.loads of the same lines, and RLlib's own converter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Row, paired
from benchmarks.recordings import recording
from offline_cli.converting.reading import read_episodes


def rows() -> list[Row]:
    return [row for name in ("sample_batch_cartpole_plain", "sample_batch_cartpole_lz4") for row in one(name)]


def one(name: str) -> list[Row]:
    source = recording(name)
    if source is None:
        return []
    (file,) = source.glob("*.json")
    lines = file.read_text(encoding="utf-8").splitlines()
    steps = sum(json.loads(line)["count"] for line in lines)
    return [
        paired(
            f"{name} to whole episodes",
            amount=steps,
            unit="steps/s",
            ours=lambda: read(file),
            rival=lambda: [json.loads(line) for line in lines],
            rival_name="json.loads of the same lines",
            floor="the parser",
        ),
        paired(
            f"{name} to whole episodes",
            amount=steps,
            unit="steps/s",
            ours=lambda: read(file),
            rival=rllib(file),
            rival_name="RLlib's documented converter, in process",
            floor="the parser",
            pairs=3,
        ),
    ]


def read(file: Path) -> int:
    return sum(batch.num_steps for batch in read_episodes([str(file)]))


def rllib(file: Path) -> Callable[[], list[bytes]]:
    """RLlib's own parser and splitter, then the loop of the page "Working with offline data", without a Ray cluster."""
    import msgpack
    import msgpack_numpy
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.offline.json_reader import from_json_data

    def convert() -> list[bytes]:
        packed = []
        for line in file.read_text(encoding="utf-8").splitlines():
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
                packed.append(msgpack.packb(episode.get_state(), default=msgpack_numpy.encode))
        return packed

    return convert
