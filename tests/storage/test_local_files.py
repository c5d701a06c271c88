"""Pipes and devices in the place of files are refused by place, and never waited for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from offline_cli import convert
from offline_cli.errors import BadData
from offline_cli.storage.locations import open_location
from offline_cli.storage.staging import whole_file

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    place = open_location(path)
    reads: list[Any] = [place.open, place.read_bytes, lambda: whole_file(place)]
    for read in reads:
        with pytest.raises(BadData, match="a pipe, socket or device") as caught:
            read()
        assert caught.value.where == str(path)


def test_a_pipe_as_a_source_is_bad_data_and_writes_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "steps.csv")
    with pytest.raises(BadData) as caught:
        convert(str(tmp_path / "steps.csv"), str(tmp_path / "out"))
    assert str(tmp_path / "steps.csv") in caught.value.where
    assert not (tmp_path / "out").exists()
