"""The folder of train batches: committed last, whole or not at all, and never over anything unasked."""

from __future__ import annotations

import hashlib
import json
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from edited_json import told_in
from folder_content import content
from json_schemas import mistakes

from offline_cli import apply, convert, repair
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece, Interrupted, NoData, OfflineCliError, OutputExists

FILTER = '[[pieces]]\nname = "mean_std_filter"\n'


@pytest.fixture
def source(episodes: EpisodeBatch, dataset: Callable[..., str]) -> str:
    """A dataset of which `applied` makes three batches."""
    return dataset(episodes)


@pytest.fixture
def applied(source: str, pipeline_file: Callable[..., str]) -> Callable[..., Any]:
    """Applies a pipeline that learns, and `piece` (TOML), to `source`."""

    def make(out: Path | str, *, piece: str = FILTER, **options: Any) -> Any:
        file = pipeline_file(piece, name=f"{hashlib.sha256(piece.encode()).hexdigest()[:8]}.toml")
        return apply(source, str(out), pipeline=file, **{"steps_per_batch": 14, **options})

    return make


@pytest.fixture
def amid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], str]:
    """Gives a pipeline, as TOML, that has something done before the third batch is made, once."""

    def make(do: Callable[[], object]) -> str:
        code = """
        from offline_cli import ConnectorV2

        class Stops(ConnectorV2):
            do = None
            batches = 0
            def __call__(self, *, batch, episodes, **kwargs):
                cls = type(self)
                cls.batches += len(episodes) == 1 and cls.do is not None
                if cls.batches == 1:
                    do, cls.do = cls.do, None
                    do()
                return batch
            def get_state(self):
                return {}
        """
        name = f"stops_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        __import__(name).Stops.do = staticmethod(do)
        return f'{FILTER}[[pieces]]\nuse = "{name}:Stops"\n'

    return make


@pytest.mark.parametrize("format", ["columns", "safetensors"])
def test_the_commit_lists_every_file_with_its_hash_and_fits_its_schema(
    format: str, source: str, applied: Callable[..., Any], tmp_path: Path
) -> None:
    done = applied(tmp_path / "out", format=format, command=["offline-cli", "apply", "x y"])
    document, files = told_in(tmp_path / "out" / "batches.json"), content(tmp_path / "out")
    assert mistakes(document, "batches.v1.json") == []
    for entry in [*document["batches"], document["state"]]:
        written = (tmp_path / "out" / entry["path"]).read_bytes()
        assert (entry["bytes"], entry["sha256"]) == (len(written), hashlib.sha256(written).hexdigest())
    assert len(files) == 6  # the folder of the batches, and three of these
    assert [(batch["episodes"], batch["steps"]) for batch in document["batches"]] == [(2, 14), (3, 20), (1, 6)]
    assert document["counts"] == {"batches": 3, "rows": 40, "episodes": 6, "steps": 40}
    assert document["columns"][0] == {"name": "obs", "dtype": "float32", "shape": [4]}
    assert (document["input_observation_space"]["high"], document["observation_space"]["high"]) == (1.0, 10.0)
    assert document["pipeline"] == {"kind": "learner", "pieces": [{"name": "mean_std_filter"}]}
    assert document["provenance"]["sources"] == [Path(source).name], "without its folders"
    assert document["provenance"]["commands"][-1] == "offline-cli apply 'x y'"
    assert done.bytes == sum(batch["bytes"] for batch in document["batches"])


def test_an_existing_folder_is_replaced_when_asked(applied: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    applied(out)
    before = content(out)
    with pytest.raises(OutputExists):
        applied(out)
    assert content(out) == before
    applied(out, overwrite=True, steps_per_batch=30)
    assert len(list((out / "data").iterdir())) == len(told_in(out / "batches.json")["batches"]) == 2
    with pytest.raises(NoData):
        repair(str(out))


def fails() -> None:
    raise ValueError("third")


def interrupts() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("do", "kind"), [(fails, BadPiece), (interrupts, Interrupted)])
def test_a_write_that_ends_early_leaves_nothing(
    do: Callable[[], None],
    kind: type[OfflineCliError],
    amid: Callable[..., str],
    applied: Callable[..., Any],
    tmp_path: Path,
) -> None:
    out = tmp_path / "made" / "out"
    with pytest.raises(kind):
        applied(out, piece=amid(do))
    assert not (tmp_path / "made").exists()


def test_what_a_killed_writer_left_is_nobodys_data(
    applied: Callable[..., Any], amid: Callable[..., str], source: str, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    applied(tmp_path / "whole", piece=amid(lambda: shutil.copytree(tmp_path / "whole", killed)))
    before = content(killed)
    assert "batches.json" not in before
    with pytest.raises(NoData):
        repair(str(killed))
    with pytest.raises(OutputExists):
        convert(source, str(killed), overwrite=True)
    assert content(killed) == before
    assert applied(killed, overwrite=True).batches == 3


def test_batches_go_to_other_storage_in_the_same_bytes(applied: Callable[..., Any], tmp_path: Path) -> None:
    applied(tmp_path / "out")
    applied("memory://apply")
    memory = fsspec.filesystem("memory")
    for batch in json.loads(memory.cat_file("/apply/batches.json"))["batches"]:
        assert memory.cat_file(f"/apply/{batch['path']}") == (tmp_path / "out" / batch["path"]).read_bytes()


def test_foreign_files_in_the_folder_are_never_replaced(applied: Callable[..., Any], tmp_path: Path) -> None:
    applied(tmp_path / "out")
    for name in ("notes.txt", "data/batch-000000.csv"):
        (tmp_path / "out" / name).write_text("theirs")
        with pytest.raises(OutputExists):
            applied(tmp_path / "out", overwrite=True)
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / "batches.json").write_text("{}")
    with pytest.raises(OutputExists):
        applied(tmp_path / "out", overwrite=True)
