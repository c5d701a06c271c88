"""A shard that is missing, cut, changed or of another kind is named, and nothing of it is taken for data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Manifest
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.parquet.reading import fingerprint
from offline_cli.spaces import space_to_json
from offline_cli.storage.locations import Location, open_location

Make = Callable[..., EpisodeBatch]
Write = Callable[..., Manifest]


@pytest.fixture
def dataset(place: Location, format: str, make_batch: Make, write_dataset: Write) -> Dataset:
    write_dataset(place, make_batch((3, 1, 5, 2)), format=format, max_rows_per_file=5 if format == "columns" else 2)
    return Dataset.open(place)


def second_shard(dataset: Dataset) -> Location:
    return dataset.location.join(dataset.manifest.shards[1].path)


def refused(dataset: Dataset) -> None:
    """Reading gives the first shard whole, and then an error that names the second."""
    found = 0
    with pytest.raises(BadData) as caught:
        for batch in dataset.batches():
            found += len(batch)
    assert found == dataset.manifest.shards[0].episodes
    assert caught.value.where.startswith(second_shard(dataset).url)


def replace_bytes(dataset: Dataset, data: bytes, *, tell_manifest: bool = True) -> Dataset:
    """The dataset with other bytes in its second shard; the manifest knows their number, unless told otherwise."""
    shard = second_shard(dataset)
    shard.fs.pipe_file(shard.path, data)
    document = dataset.manifest.as_json()
    if tell_manifest:
        document["shards"][1]["bytes"], document["shards"][1]["sha256"] = fingerprint(shard)
    manifest = Manifest.from_bytes(json.dumps(document).encode(), where="m")
    return Dataset(dataset.location, manifest)


@pytest.mark.parametrize("keep", [0, 3, 4, 100, -1, -8, -100])
def test_a_cut_shard_is_refused_even_where_the_size_is_right(dataset: Dataset, keep: int) -> None:
    data = second_shard(dataset).read_bytes()
    refused(replace_bytes(dataset, data[:keep]))


def rewritten(dataset: Dataset, change: Callable[[pa.Table], pa.Table]) -> Dataset:
    """The dataset with its second shard as `change` makes it."""
    sink = pa.BufferOutputStream()
    pq.write_table(change(pq.read_table(second_shard(dataset).open())), sink)
    return replace_bytes(dataset, sink.getvalue().to_pybytes())


@pytest.mark.parametrize("name", ["eps_id", "agent_id", "infos"])
def test_text_that_is_no_text_is_refused(place: Location, make_batch: Make, write_dataset: Write, name: str) -> None:
    write_dataset(place, make_batch((3, 1, 5, 2), infos=[{"a": 1}] * 15), max_rows_per_file=5)

    def broken(table: pa.Table) -> pa.Table:
        texts = pa.array([b"\xff\xfe"] * len(table), pa.binary()).view(pa.string())
        return table.set_column(table.column_names.index(name), name, texts)

    refused(rewritten(Dataset.open(place), broken))


def test_episodes_that_are_not_in_the_manifests_spaces_are_refused(
    place: Location, make_batch: Make, write_dataset: Write
) -> None:
    document = write_dataset(place, make_batch((2, 3)), format="episodes").as_json()
    for wrong in (spaces.Box(-1, 1, (5,)), spaces.Tuple([spaces.Discrete(2)] * 2), spaces.Dict({"a": spaces.Discrete(2)})):
        document["observation_space"] = space_to_json(wrong)
        broken = Dataset(place, Manifest.from_bytes(json.dumps(document).encode(), where="m"))
        with pytest.raises(BadData, match="'obs'") as caught:
            list(broken.batches())
        assert caught.value.where.startswith(place.join(document["shards"][0]["path"]).url)


def test_other_spaces_than_the_shards_have_are_refused(place: Location, make_batch: Make, write_dataset: Write) -> None:
    manifest = write_dataset(place, make_batch())
    document = manifest.as_json()
    document["observation_space"] = space_to_json(spaces.Box(-1, 1, (5,), "float32"))
    document["action_space"] = space_to_json(spaces.MultiBinary(2))
    broken = Dataset(place, Manifest.from_bytes(json.dumps(document).encode(), where="m"))
    with pytest.raises(BadData) as caught:
        list(broken.batches())
    for name in ("'obs'", "'new_obs'", "'actions'"):
        assert name in caught.value.what


def test_a_broken_shard_is_refused_with_the_command_that_leaves_it_out(
    tmp_path: Path, make_batch: Make, write_dataset: Write
) -> None:
    folder = tmp_path / "my data"
    write_dataset(open_location(folder), make_batch((3, 1, 5, 2)), format="episodes", max_rows_per_file=2)
    shard = folder / Dataset.open(open_location(folder)).manifest.shards[1].path
    whole = shard.read_bytes()
    for broken in (whole[:-9], whole[:200] + b"X" + whole[201:], None):
        if broken is None:
            shard.unlink()
        else:
            shard.write_bytes(broken)
        with pytest.raises(BadData) as caught:
            list(Dataset.open(open_location(folder)).batches())
        assert caught.value.fix.endswith(f"leave it out: offline-cli repair '{folder}' --drop-broken")
