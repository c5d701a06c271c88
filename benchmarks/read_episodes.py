"""How fast are episodes read, ours, RLlib's and Minari's? Rivals: msgpack with msgpack-numpy's hook, as in RLlib; Minari."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow.parquet as pq
from gymnasium import spaces

from benchmarks.harness import HERE, Floor, Row, against, paired, timed, versions
from offline_cli import convert, write_dataset
from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import decode_batch, encode_batch, layouts
from offline_cli.tally import Rejects, Tally

FLOORS = {500: Floor(5, words=">= 5x plain msgpack-numpy"), 20: Floor(2.5, words=">= 2.5x plain msgpack-numpy")}
RLLIBS = Floor(9, words=">= 9x plain msgpack-numpy")
CUTS = Floor(1.4, words=">= 1.4x reading field by field")
MINARI = Floor(1, words="as fast as Minari's own iteration")
LENGTH = 500


def rows(small: bool = False) -> list[Row]:
    share = 100 if small else 1
    made = [packed(500, 200 // share), packed(20, 5000 // share)]
    theirs = sorted((HERE.parent / "sample_data" / "rllib_cartpole_expert").glob("*.parquet"))
    items = [item for file in theirs for item in pq.read_table(file)["item"].to_pylist()]
    pairs = 1 if small else 7
    return [
        *(
            decoded(f"read our episodes of {length} steps, observations of 4 floats", part, floor, pairs)
            for part, (length, floor) in zip(made, FLOORS.items(), strict=True)
        ),
        decoded("read RLlib's own episodes, not numpy'ized", items, RLLIBS, pairs),
        cut_by_size(made[1], pairs),
        minari(1500 // share, pairs),
    ]


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


def packed(length: int, number: int) -> list[bytes]:
    return encode_batch(episodes(length, number), where="benchmark", tally=Tally())


def decoded(question: str, items: list[bytes], floor: Floor, pairs: int) -> Row:
    ours, rival = timed(lambda: read(items), read(items)), timed(lambda: plain(items), read(items))
    name = f"plain {versions('msgpack-numpy')}"
    return paired(question, ours, rival, unit="steps/s", rival_name=name, floor=floor, pairs=pairs)


def cut_by_size(items: list[bytes], pairs: int) -> Row:
    """What cutting items of one size brings, compared with reading them field by field (`codec/layouts.py`)."""
    count = read(items)
    ours, rival = timed(lambda: read(items), count), timed(lambda: read_by_fields(items), count)
    question = "read our episodes of 20 steps, cut by size"
    return paired(question, ours, rival, unit="steps/s", rival_name="the same, field by field", floor=CUTS, pairs=pairs)


def read_by_fields(items: list[bytes]) -> int:
    with patch.object(layouts, "MAX_CUTS", 0):
        return read(items)


def read(items: list[bytes]) -> int:
    return sum(b.num_steps for b in decode_batch(items, where=str, rejects=Rejects(), tally=Tally()))


def plain(items: list[bytes]) -> int:
    return sum(msgpack.unpackb(item, object_hook=msgpack_numpy.decode, strict_map_key=False)["t"] for item in items)


def minari(number: int, pairs: int) -> Row:
    """The same HDF5 file read by both."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "root", "made", "cartpole-v0")
        write_dataset(episodes(LENGTH, number), f"{folder}/D", action_scale="env")
        convert(f"{folder}/D", str(file), to="minari")
        return against(
            "minari_read.py",
            f"read {number:,} episodes of {LENGTH} steps from Minari's HDF5",
            timed(lambda: sum(batch.num_steps for batch in read_episodes([str(file)])), LENGTH * number),
            unit="steps/s",
            rival_name="Minari, HDF5",
            floor=MINARI,
            pairs=pairs,
            root=f"{folder}/root",
            name="made/cartpole-v0",
        )
