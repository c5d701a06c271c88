"""What is resumed must not be half of one source and half of a later one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offline_cli import convert, filter
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.errors import BadConfig, Interrupted

OPTIONS: dict[str, Any] = {"max_rows_per_file": 200}


def table(path: Path, reward: float) -> Path:
    rows = [f"e{episode:05d},{step},{step}.5,0,{reward},{int(step == 4)}" for episode in range(1000) for step in range(5)]
    path.write_text("\n".join(["eps_id,t,obs,actions,rewards,terminateds", *rows]) + "\n")
    return path


@pytest.mark.parametrize("command", [convert, filter])
def test_a_source_file_that_has_changed_ends_resume(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out, written = table(tmp_path / "a.csv", 1.0), tmp_path / "D", DatasetWriter.write
    options = OPTIONS if command is convert else {**OPTIONS, "where": "return > 0"}
    batches = iter(range(1))

    def write_one(self: DatasetWriter, *given: Any) -> None:
        if next(batches, None) is None:
            raise KeyboardInterrupt
        written(self, *given)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(DatasetWriter, "write", write_one)
        command(source, out, **options)
    table(source, 100.0)
    with pytest.raises(BadConfig) as caught:
        command(source, out, **options, resume=True)
    assert caught.value.details["changed"] == ["a source"]
    table(source, 1.0)
    assert command(source, out, **options, resume=True).episodes == 1000
