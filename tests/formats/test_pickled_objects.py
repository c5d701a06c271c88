"""Cells that Ray pickled because Arrow has no type for them: states of modules with memory, Tuple actions, observations."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli import convert, open_dataset
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import UnsafeData
from offline_cli.trees import map_leaves

SAMPLES = Path(__file__).parents[1] / "testdata" / "rllib_objects"
OBJECTS = {b"ARROW:extension:name": b"ray.data.arrow_pickled_object", b"ARROW:extension:metadata": b""}
N = 4


class Payload:
    """Its pickle makes a folder where it is let in."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def pickled(values: list[Any], protocol: int = 5) -> pa.Array:
    return pa.array(
        [value if isinstance(value, bytes) else pickle.dumps(value, protocol) for value in values], pa.large_binary()
    )


def where(row: int) -> str:
    return f"row {row}"


def state(step: int) -> dict[str, Any]:
    return {"h": np.full((1, 3), step, np.float32), "c": np.arange(step, step + 3.0)}


def write(path: Path, *, tagged: bool = True, **more: list[Any]) -> str:
    columns = {
        "eps_id": pa.array(["a"] * N),
        "obs": pa.array([[float(i), 0.0] for i in range(N)]),
        "new_obs": pa.array([[i + 1.0, 0.0] for i in range(N)]),
        "actions": pa.array([i % 2 for i in range(N)]),
        "rewards": pa.array([1.0] * N),
        "terminateds": pa.array([i == N - 1 for i in range(N)]),
    }
    columns |= {name: pickled(values) for name, values in more.items()}
    fields = [
        pa.field(name, array.type, metadata=OBJECTS if tagged and name in more else None) for name, array in columns.items()
    ]
    pq.write_table(pa.table(list(columns.values()), schema=pa.schema(fields)), path)
    return str(path)


def read(path: str, **options: Any) -> tuple[EpisodeBatch, EpisodeStream]:
    stream = read_episodes(path, **options)
    return EpisodeBatch.concat(list(stream)), stream


def assert_same_trees(ours: Any, theirs: Any) -> None:
    map_leaves(lambda mine, other: np.testing.assert_array_equal(mine, other, strict=True), ours, theirs)


def stacked(values: list[Any]) -> Any:
    return map_leaves(lambda *parts: np.array(parts, np.asarray(parts[0]).dtype), *values)


# ---- recordings ----


def test_states_of_a_module_with_memory_that_rllib_recorded_are_extra_outputs(tmp_path: Path) -> None:
    source = str(SAMPLES / "lstm_states.parquet")
    result = convert(source, tmp_path / "out")
    assert (result.dropped_columns, result.assumptions) == ((), {})
    table = pq.read_table(source, columns=["state_out"])
    wanted = stacked([pickle.loads(cell) for cell in _cells(table["state_out"])])
    batch = EpisodeBatch.concat(list(open_dataset(str(tmp_path / "out")).batches()))
    assert_same_trees(batch.extra["state_out"], wanted)
    assert batch.extra["state_out"]["h"].shape == (25, 1, 4)


def test_tuple_actions_that_rllib_recorded_are_tuples() -> None:
    source = str(SAMPLES / "tuple_actions.parquet")
    batch, stream = read(source)
    table = pq.read_table(source, columns=["actions"])
    theirs = stacked([pickle.loads(cell) for cell in _cells(table["actions"])])
    map_leaves(np.testing.assert_array_equal, batch.actions, theirs)  # categories are int64 in our spaces
    assert str(stream.action_space) == "Tuple(Discrete(3), Box(-inf, inf, (2,), float32))"


def _cells(column: Any) -> list[bytes]:
    """The bytes as they are stored, whether or not Ray has registered its type with Arrow by now."""
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    return list(getattr(array, "storage", array).to_pylist())


# ---- what a column may hold ----


# ---- what is refused, or dropped and named ----


@pytest.mark.parametrize("column", ["obs", "actions", "infos"])
def test_a_hostile_object_in_a_column_that_a_step_needs_is_refused_and_never_run(tmp_path: Path, column: str) -> None:
    canary = tmp_path / "canary"
    source = write(tmp_path / "a.parquet", **{column: [Payload(canary)] * N})
    with pytest.raises(UnsafeData):
        read(source)
    assert not canary.exists()


@pytest.mark.integration
@pytest.mark.parametrize("column", ["actions", "infos", "hook"])
def test_objects_are_never_run_where_ray_has_registered_its_type(tmp_path: Path, column: str) -> None:
    pytest.importorskip("ray.data.extensions", reason="needs the extra [ray]")
    canary = tmp_path / "canary"
    source = write(tmp_path / "a.parquet", **{column: [Payload(canary)] * N})
    convert([source, str(SAMPLES / "lstm_states.parquet")], tmp_path / "out", on_error="quarantine")
    assert not canary.exists()
