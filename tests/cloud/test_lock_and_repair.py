"""The writer's lock and repair on S3, Google Cloud Storage and Azure."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import numpy as np
import pytest
from cloud_servers import Cloud
from gymnasium import spaces

from offline_cli.checking.repair import repair
from offline_cli.checking.validate import validate
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import Locked, TakenOver
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import create_only

pytestmark = pytest.mark.integration

SPACE, ACTIONS = spaces.Box(-1, 1, (4,), np.float64), spaces.Discrete(2)


class Crash(Exception):
    """Stands for a kill."""


def episode(number: int, steps: int = 3) -> EpisodeBatch:
    rng = np.random.default_rng(number)
    return EpisodeBatch(
        ids=(f"e{number}",),
        starts=np.array([0, steps]),
        obs=rng.random((steps + 1, 4)),
        actions=rng.integers(0, 2, steps),
        rewards=rng.random(steps),
        terminated=np.array([True]),
        truncated=np.array([False]),
        observation_space=SPACE,
        action_space=ACTIONS,
    )


def writer(place: Location, **options: Any) -> DatasetWriter:
    known: dict[str, Any] = {
        "format": "columns",
        "observation_space": SPACE,
        "action_space": ACTIONS,
        "action_scale": "env",
        "max_rows_per_file": 1,
        "compression": "none",
    }
    return DatasetWriter(place, **{**known, **options})


def crashed(place: Location, episodes: int) -> None:
    with contextlib.suppress(Crash), writer(place) as open_writer:
        for number in range(episodes):
            open_writer.write(episode(number))
        raise Crash


def set_note(place: Location, **changes: Any) -> None:
    target = place.join("_writing.json")
    note = json.loads(target.read_bytes())
    target.fs.pipe_file(target.path, json.dumps({**note, "left": False, **changes}).encode())


@pytest.fixture
def place(cloud: Cloud) -> Location:
    """A folder in a bucket that does not exist yet."""
    return open_location(f"{cloud.bucket()}/D")


def test_a_file_is_made_where_none_is_and_only_there(cloud: Cloud, place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    conditions: list[Any] = []
    if cloud.scheme == "gs":  # the emulator takes the condition, and does not heed it
        import gcsfs

        real = gcsfs.GCSFileSystem._call

        async def seen(self: Any, *args: Any, **options: Any) -> Any:
            conditions.append(options.get("ifGenerationMatch"))
            return await real(self, *args, **options)

        monkeypatch.setattr(gcsfs.GCSFileSystem, "_call", seen)
    assert create_only(place.join("a"), b"mine")
    if cloud.scheme == "gs":
        assert conditions[0] == "0"
        return
    assert not create_only(place.join("a"), b"theirs")
    assert place.join("a").read_bytes() == b"mine"


def test_a_second_writer_is_told_of_the_first(cloud: Cloud, place: Location) -> None:
    with writer(place) as first:
        for how in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(Locked, match=socket.gethostname()), writer(place, **how):
                pass
        first.write(episode(0))
        first.commit()
    assert [file.name for file in place.children()] == ["README.md", "data", "manifest.json"]


def test_a_writer_that_was_replaced_commits_nothing(place: Location) -> None:
    with pytest.raises(TakenOver), writer(place) as first:
        first.write(episode(0))
        set_note(place, token="another's")
        first.write(episode(1))
        first.commit()
    assert not place.join("manifest.json").exists()
    assert json.loads(place.join("_writing.json").read_bytes())["token"] == "another's"


def test_repair_adopts_what_is_whole_and_sets_the_rest_aside(place: Location) -> None:
    crashed(place, 4)
    empty = place.join("data/shard-00000000-000000.parquet")
    empty.fs.pipe_file(empty.path, b"")
    found = repair(place)  # type: ignore[arg-type]
    assert (found.episodes, found.adopted, found.dropped) == (3, 3, 1)
    assert (found.removed, found.set_aside) == ((), (empty.url,))
    assert {problem.code for problem in validate(place, deep=True).problems} == {"incomplete-dataset"}
    with writer(place, resume=True) as resumed:
        assert resumed.episodes_written == 3
