"""A stream of episodes holds files and threads no longer than its `with` block."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hdf5_trees import FOREIGN

from offline_cli.converting.convert import convert
from offline_cli.converting.reading import read_episodes

FDS = Path("/proc/self/fd")


@pytest.mark.skipif(not FDS.exists(), reason="needs /proc to see open files")
@pytest.mark.parametrize("to", ["episodes", "columns", "minari", "json"])
def test_a_stream_that_an_error_leaves_halfway_closes_what_it_opened(to: str, tmp_path: Path) -> None:
    source = tmp_path / "data"
    if to == "json":
        source.mkdir()
        (source / "a.json").write_text(
            '{"type": "SampleBatch", "eps_id": [1], "obs": [[0.5]], "actions": [0], "rewards": [1]}\n' * 9
        )
    else:
        convert(FOREIGN / "minari_hdf5", source, to=to)

    def held() -> set[object]:
        names = {os.readlink(file) for file in FDS.iterdir() if file.is_symlink()}
        return {*(name for name in names if name.startswith(str(tmp_path))), *threading.enumerate()}

    before = held()
    with pytest.raises(KeyboardInterrupt) as caught, read_episodes(str(source)) as stream:
        for _ in stream:
            raise KeyboardInterrupt
    assert held() <= before
    assert caught.tb is not None  # which keeps every frame alive
