"""Keys given as storage options are in nothing that a command writes or prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import Cloud
from typer.testing import CliRunner

from offline_cli.datasets.target_folder import TargetFolder

pytestmark = pytest.mark.integration

RECORD = ("record", "CartPole-v1", "--policy", "random", "--episodes", "2", "--num-env-runners", "0")
SECRET = "hush-hush-hush"


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every `_writing.json` of commands, as it stood in the storage."""
    found: list[dict[str, Any]] = []
    begin = TargetFolder.begin

    def seen(target: TargetFolder, *args: Any, **options: Any) -> None:
        begin(target, *args, **options)
        found.append(json.loads(target.folder.join("_writing.json").read_bytes()))

    monkeypatch.setattr(TargetFolder, "begin", seen)
    return found


def test_neither_data_nor_manifest_nor_note_nor_output_has_a_secret(
    s3_server: Cloud, notes: list[dict[str, Any]], tmp_path: Path
) -> None:
    from offline_cli.cli.app import app

    bucket = s3_server.bucket()  # of moto, which takes every key
    (tmp_path / "pipeline.toml").write_text('kind = "learner"\n', encoding="utf-8")
    options = {**s3_server.options, "secret": SECRET, "token": SECRET}
    given = [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]
    for command in (
        (*RECORD, "--out", f"{bucket}/D"),
        ("convert", f"{bucket}/D", "--out", f"{bucket}/C"),
        ("apply", f"{bucket}/D", "--pipeline", str(tmp_path / "pipeline.toml"), "--out", f"{bucket}/A"),
        ("repair", f"{bucket}/D"),
        ("train-bc", f"{bucket}/D", "--updates", "2", "--out", str(tmp_path / "run")),
        ("validate", f"{bucket}/D"),
    ):
        done = CliRunner().invoke(app, [*command, *given])
        assert done.exit_code == 0, done.output
        assert SECRET not in done.output
    assert [note["command"].count("secret=***") for note in notes] == [1, 1], notes
    client = s3_server.client(skip_instance_cache=True)
    written = {path: client.cat_file(path) for path in client.find(bucket)}
    written |= {str(path): path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {path.rpartition("/")[2] for path in written} >= {"manifest.json", "batches.json", "config.toml"}
    assert [path for path, data in written.items() if SECRET.encode() in data] == []
