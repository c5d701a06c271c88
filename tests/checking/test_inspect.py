"""Figures of data, from a manifest or by reading."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offline_cli.checking.inspect import inspect
from offline_cli.converting.convert import convert
from offline_cli.errors import BadData, Uncommitted, UsageError


@pytest.mark.parametrize("to", ["episodes"])
def test_the_manifest_gives_the_figures_that_reading_gives(to: str, real_data: Path, tmp_path: Path) -> None:
    source = str(real_data / "rllib_columns_pendulum_plain")
    convert(source, str(tmp_path / "D"), to=to)
    read, known = inspect(source).as_dict(), inspect(str(tmp_path / "D")).as_dict()
    assert known["from_manifest"]
    for name in ("episodes", "steps", "terminated", "truncated", "observation_space", "action_space", "action_scale"):
        assert known[name] == read[name]
    for name in ("return", "length"):
        assert known[name]["quantiles"] == pytest.approx(read[name]["quantiles"], rel=1e-12)
        assert known[name]["mean"] == pytest.approx(read[name]["mean"], rel=1e-12)


# ---- a dataset on this machine ----

HEAVY = (
    *("torch", "polars", "pyarrow", "pandas", "fsspec", "s3fs", "gcsfs", "adlfs", "aiohttp", "matplotlib", "jsonschema"),
    *("asyncio", "msgpack", "offline_cli.storage.locations", "offline_cli.formats", "offline_cli.converting"),
    *("offline_cli.episodes", "offline_cli.parquet", "offline_cli.datasets.dataset", "offline_cli.modules"),
)
RUN = f"""
import json, sys
from offline_cli.cli.app import app
code = app(["inspect", sys.argv[1], "--json", "--quiet", "--expect", "episodes=2"], standalone_mode=False)
print(json.dumps([code, [name for name in {HEAVY} if name in sys.modules]]))
"""


@pytest.fixture
def dataset(make: Any) -> Path:
    """A committed dataset of two episodes."""
    folder: Path = make.dataset(make.batch((1, 2)))
    return folder.rename(folder.parent / "D")


def test_the_command_imports_nothing_heavy_to_show_a_manifest(dataset: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RUN, str(dataset)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


@pytest.mark.parametrize("spelled", ["{}", "D/", "D*", "file://{}"])
def test_a_dataset_has_the_same_figures_however_its_folder_is_spelled_and_opened(
    spelled: str, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dataset.parent / "beside").mkdir()
    monkeypatch.chdir(dataset.parent if not spelled.startswith("..") else dataset.parent / "beside")
    place = spelled.format(dataset)
    found = inspect(place).as_dict()
    monkeypatch.setattr(sys.modules[inspect.__module__], "_of_local_dataset", lambda *_: None)
    assert found == inspect(place).as_dict()
    assert found["episodes"] == 2


def test_a_dataset_that_is_damaged_or_not_finished_or_asked_for_as_something_else_is_refused(dataset: Path) -> None:
    for options, named in (
        ({"from_": "columns"}, "--from"),
        ({"rows_as_episodes": True}, "--rows-as-episodes"),
        ({"storage_options": {"cannot_be": 1}}, "cannot_be"),
    ):
        with pytest.raises(UsageError, match=named):
            inspect(dataset, **options)
    (dataset / "_writing.json").write_text("{}")
    with pytest.raises(Uncommitted):
        inspect(dataset)
    (dataset / "_writing.json").unlink()
    (dataset / "manifest.json").write_text("{}")
    with pytest.raises(BadData, match="manifest"):
        inspect(dataset)


@pytest.mark.parametrize(("harm", "options"), [("missing", {}), ("cut", {"head": 1})])
def test_an_expectation_of_a_dataset_looks_whether_its_shards_are_there(harm: str, options: dict[str, Any], make: Any) -> None:
    dataset = make.dataset(make.batch((1, 2)))
    (shard,) = Path(dataset).glob("data/*.parquet")
    if harm == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1])
    assert inspect(str(dataset)).episodes == 2
    with pytest.raises(BadData, match=shard.name):
        inspect(str(dataset), expect={"episodes": 2}, **options)
