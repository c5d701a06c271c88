"""Small data of every format, clean unless a test breaks it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import encode_batch
from offline_cli.episodes.codec.arrays import pack, unpack
from offline_cli.storage.locations import open_location
from offline_cli.tally import Tally

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:  # the lists of faulty data are modules of their own
    sys.path.append(HERE)

OBSERVATIONS = spaces.Box(-10, 10, (3,), np.float32)
ACTIONS = spaces.Discrete(3)
LENGTHS = (4, 3, 5)


class Maker:
    """Makes data below one folder, another name for each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made = 0

    def path(self, suffix: str = "") -> Path:
        """A new place."""
        self._made += 1
        return self.folder / f"data-{self._made}{suffix}"

    # ---- episodes ----

    def batch(self, lengths: Sequence[int] = LENGTHS, *, boxes: bool = False, **fields: Any) -> EpisodeBatch:
        """Whole, terminated episodes `e0`, `e1`, ...; the same ones each time. `boxes`: actions of a Box in [-2, 2]."""
        rng = np.random.default_rng(1)
        steps, count = sum(lengths), len(lengths)
        actions = rng.uniform(-1, 1, (steps, 1)).astype(np.float32) if boxes else np.arange(steps) % 3
        known = {
            "ids": tuple(f"e{i}" for i in range(count)),
            "starts": np.cumsum([0, *lengths]).astype(np.int64),
            "obs": rng.uniform(-1, 1, (steps + count, 3)).astype(np.float32),
            "actions": actions,
            "rewards": rng.normal(size=steps),
            "terminated": np.ones(count, np.bool_),
            "truncated": np.zeros(count, np.bool_),
            "observation_space": OBSERVATIONS,
            "action_space": spaces.Box(-2, 2, (1,), np.float32) if boxes else ACTIONS,
        }
        return EpisodeBatch(**{**known, **fields})

    def packed(self, batch: EpisodeBatch | None = None) -> list[bytes]:
        """Each episode as RLlib packs it."""
        return encode_batch(self.batch() if batch is None else batch, where="test", tally=Tally())

    def repacked(self, item: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
        """A packed episode after a change of its state."""
        state = unpack(item, where="test")
        change(state)
        return pack(state)

    def items(self, *files: Sequence[bytes]) -> Path:
        """A folder of files of packed episodes."""
        folder = self.path()
        folder.mkdir()
        for number, items in enumerate(files):
            pq.write_table(pa.table({"item": pa.array(items, pa.binary())}), folder / f"part-{number}.parquet")
        return folder

    # ---- rows of steps ----

    def columns(self, batch: EpisodeBatch | None = None, *, t: bool = True) -> dict[str, Any]:
        """Columns of steps, to be changed and written with `rows`."""
        batch = self.batch() if batch is None else batch
        terminateds, truncateds = batch.step_flags()
        columns = {
            "eps_id": np.repeat(np.array(batch.ids), batch.lengths).tolist(),
            "t": batch.timesteps(),
            "obs": batch.acted_obs(),
            "new_obs": batch.next_obs(),
            "actions": np.array(batch.actions),
            "rewards": np.array(batch.rewards),
            "terminateds": terminateds,
            "truncateds": truncateds,
        }
        return columns if t else {name: values for name, values in columns.items() if name != "t"}

    def rows(self, columns: dict[str, Any]) -> Path:
        """A folder with one Parquet file of these columns."""
        folder = self.path()
        folder.mkdir()
        plain = {name: values.tolist() if getattr(values, "ndim", 0) > 1 else values for name, values in columns.items()}
        pq.write_table(pa.table(plain), folder / "part-0.parquet")
        return folder

    def lines(self, *lines: dict[str, Any]) -> Path:
        """A file of SampleBatch JSON."""
        file = self.path(".json")
        texts = [json.dumps({"type": "SampleBatch", **{k: _plain(v) for k, v in line.items()}}) for line in lines]
        file.write_text("\n".join(texts) + "\n", encoding="utf-8")
        return file

    # ---- datasets ----

    def dataset(self, batch: EpisodeBatch | None = None, *, format: str = "episodes", **options: Any) -> Path:
        """A committed dataset; `commit`: arguments of the commit."""
        folder, batch = self.path(), self.batch() if batch is None else batch
        known = {
            "format": format,
            "observation_space": batch.observation_space,
            "action_space": batch.action_space,
            "action_scale": "env",
            "provenance": {"commands": ["offline-cli record"]},
        }
        commit = options.pop("commit", {})
        rejects = options.pop("rejects", [])
        with DatasetWriter(open_location(folder), **{**known, **options}) as writer:
            writer.write(batch)
            writer.quarantine(rejects)
            writer.commit(**commit)
        return folder

    def edit_manifest(self, folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
        """Change the manifest of a dataset."""
        file = folder / "manifest.json"
        document = json.loads(file.read_text(encoding="utf-8"))
        change(document)
        file.write_text(json.dumps(document), encoding="utf-8")
        return folder

    def rewrite_shard(self, folder: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
        """Write the only shard of a dataset again, and let its manifest say so."""
        shard = next((folder / "data").iterdir())
        pq.write_table(change(pq.read_table(shard)), shard)
        said = {"bytes": shard.stat().st_size, "sha256": hashlib.sha256(shard.read_bytes()).hexdigest()}
        return self.edit_manifest(folder, lambda found: found["shards"][0].update(said))


def _plain(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    """Makes data of every format."""
    return Maker(tmp_path)
