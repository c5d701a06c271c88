"""How fast are packed episodes read, ours and RLlib's own? Rival: msgpack with msgpack-numpy's hook, as RLlib calls it."""

from __future__ import annotations

from pathlib import Path

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow.parquet as pq
from gymnasium import spaces

from benchmarks.floors import bytes_floor
from benchmarks.harness import Row, paired, versions
from benchmarks.targets import Target
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import decode_batch, encode_batch
from offline_cli.tally import Rejects, Tally

TARGETS = {
    500: Target(5e6, of="ours", words=">= 5 M steps/s"),
    20: Target(1e6, of="ours", words=">= 1 M steps/s"),
}
SAMPLE = Path(__file__).resolve().parent.parent / "sample_data" / "rllib_cartpole_expert"


def rows() -> list[Row]:
    return [ours(500, 200), ours(20, 5000), rllibs()]


def episodes(length: int, number: int) -> EpisodeBatch:
    """`number` episodes of `length` steps: observations of 4 float32, two actions, no infos."""
    rng = np.random.default_rng(0)
    n = length * number
    return EpisodeBatch(
        ids=tuple(f"{i:032x}" for i in range(number)),
        starts=np.arange(number + 1) * length,
        obs=rng.normal(size=(n + number, 4)).astype(np.float32),
        actions=rng.integers(0, 2, n),
        rewards=np.ones(n),
        terminated=np.ones(number, bool),
        truncated=np.zeros(number, bool),
        observation_space=spaces.Box(-np.inf, np.inf, (4,), np.float32),
        action_space=spaces.Discrete(2),
    )


def read(items: list[bytes]) -> int:
    return sum(b.num_steps for b in decode_batch(items, where=str, rejects=Rejects(), tally=Tally()))


def plain(items: list[bytes]) -> int:
    return sum(msgpack.unpackb(item, object_hook=msgpack_numpy.decode, strict_map_key=False)["t"] for item in items)


def ours(length: int, number: int) -> Row:
    items = encode_batch(episodes(length, number), where="benchmark", tally=Tally())
    return paired(
        f"read our episodes of {length} steps, observations of 4 floats",
        amount=length * number,
        unit="steps/s",
        ours=lambda: read(items),
        rival=lambda: plain(items),
        rival_name=f"plain {versions('msgpack-numpy')}",
        floor=bytes_floor(sum(map(len, items)) / (length * number), "step"),
        target=TARGETS[length],
    )


def rllibs() -> Row:
    items = [item for file in sorted(SAMPLE.glob("*.parquet")) for item in pq.read_table(file)["item"].to_pylist()]
    return paired(
        "read RLlib's own episodes, not numpy'ized",
        amount=read(items),
        unit="steps/s",
        ours=lambda: read(items),
        rival=lambda: plain(items),
        rival_name=f"plain {versions('msgpack-numpy')}",
        floor=bytes_floor(sum(map(len, items)) / read(items), "step"),
        target=Target(10, words=">= 10x plain msgpack-numpy"),
    )
