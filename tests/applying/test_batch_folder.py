"""The folder of train batches: committed last, whole or not at all, and never over anything unasked."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from offline_cli import apply
from offline_cli.applying.apply import ApplyResult
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece, Interrupted, NoData, OutputExists
from offline_cli.formats.opening import open_sources
from offline_cli.json_documents import mistakes

Dataset = Callable[..., str]
Pipeline = Callable[..., str]
FILTER = '[[pieces]]\nname = "mean_std_filter"\n'


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def told_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "batches.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def third_batch_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Gives a piece, as TOML, that does something at its third call."""

    def make(what: str) -> str:
        code = f"""
        import os, signal
        from offline_cli import ConnectorV2

        class Stops(ConnectorV2):
            calls = 0
            def __call__(self, *, batch, **kwargs):
                type(self).calls += 1
                if type(self).calls == 3:
                    {what}
                return batch
        """
        name = f"stops_{hashlib.sha256(what.encode()).hexdigest()[:8]}_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        return f'[[pieces]]\nuse = "{name}:Stops"\n'

    return make


@pytest.mark.parametrize("format", ["columns", "safetensors"])
def test_the_commit_lists_every_file_with_its_hash_and_fits_its_schema(
    format: str, episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    source, file = dataset(episodes), pipeline_file(FILTER)
    told = apply(source, str(out), pipeline=file, format=format, steps_per_batch=14, command=["offline-cli", "apply", "x y"])
    assert isinstance(told, ApplyResult)
    document = told_of(out)
    assert mistakes(document, "batches.v1.json") == []
    files = contents(out)
    assert set(files) == {"batches.json", "connectors.msgpack", *(batch["path"] for batch in document["batches"])}
    for entry in [*document["batches"], document["state"]]:
        assert entry["bytes"] == len(files[entry["path"]])
        assert entry["sha256"] == hashlib.sha256(files[entry["path"]]).hexdigest()
    assert [(batch["episodes"], batch["steps"]) for batch in document["batches"]] == [(2, 14), (3, 20), (1, 6)]
    assert document["counts"] == {"batches": 3, "rows": 40, "episodes": 6, "steps": 40}
    assert document["columns"][0] == {"name": "obs", "dtype": "float32", "shape": [4]}
    assert document["input_observation_space"]["high"] == 1.0
    assert document["observation_space"]["high"] == 10.0
    assert document["pipeline"] == {"kind": "learner", "pieces": [{"name": "mean_std_filter"}]}
    assert document["provenance"]["sources"] == [Path(source).name], "without its folders"
    assert document["provenance"]["commands"][-1] == "offline-cli apply 'x y'"
    assert told.bytes == sum(batch["bytes"] for batch in document["batches"])


def test_what_is_there_stays_without_overwrite(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    source, out, file = dataset(episodes), tmp_path / "out", pipeline_file()
    apply(source, str(out), pipeline=file)
    before = contents(out)
    with pytest.raises(OutputExists, match="a set of train batches is here already") as caught:
        apply(source, str(out), pipeline=file)
    assert caught.value.fix == "--overwrite to replace it, or another --out"
    assert contents(out) == before


def test_overwriting_leaves_the_new_batches_alone_and_their_bytes_are_the_same(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    source, out, file = dataset(episodes), tmp_path / "out", pipeline_file(FILTER)
    apply(source, str(out), pipeline=file, steps_per_batch=14)
    before = contents(out)
    apply(source, str(out), pipeline=file, steps_per_batch=14, overwrite=True)
    names = [batch["path"] for batch in told_of(out)["batches"]]
    assert names == [f"data/batch-{number:06d}-1.parquet" for number in range(3)]
    after = contents(out)
    assert set(after) == {"batches.json", "connectors-1.msgpack", *names}
    assert [after[name] for name in names] == [before[name.replace("-1.", ".")] for name in names]
    apply(source, str(out), pipeline=pipeline_file(), overwrite=True)
    assert set(contents(out)) == {"batches.json", "data/batch-000000-2.parquet"}


def test_a_failing_overwrite_leaves_the_old_batches_as_they_were(
    episodes: EpisodeBatch,
    dataset: Dataset,
    pipeline_file: Pipeline,
    tmp_path: Path,
    third_batch_stops: Callable[[str], str],
) -> None:
    source, out = dataset(episodes), tmp_path / "out"
    apply(source, str(out), pipeline=pipeline_file(FILTER), steps_per_batch=14)
    before = contents(out)
    broken = pipeline_file(third_batch_stops('raise ValueError("third")'), name="broken.toml")
    with pytest.raises(BadPiece, match="third"):
        apply(source, str(out), pipeline=broken, steps_per_batch=14, overwrite=True)
    assert contents(out) == before


def test_a_failure_in_the_middle_leaves_nothing(
    episodes: EpisodeBatch,
    dataset: Dataset,
    pipeline_file: Pipeline,
    tmp_path: Path,
    third_batch_stops: Callable[[str], str],
) -> None:
    file = pipeline_file(third_batch_stops('raise ValueError("third")'))
    with pytest.raises(BadPiece, match="third"):
        apply(dataset(episodes), str(tmp_path / "made" / "out"), pipeline=file, steps_per_batch=14)
    assert not (tmp_path / "made").exists()


def test_an_interruption_leaves_nothing_and_says_so(
    episodes: EpisodeBatch,
    dataset: Dataset,
    pipeline_file: Pipeline,
    tmp_path: Path,
    third_batch_stops: Callable[[str], str],
) -> None:
    file = pipeline_file(third_batch_stops("raise KeyboardInterrupt"))
    with pytest.raises(Interrupted, match="interrupted; no train batch was kept") as caught:
        apply(dataset(episodes), str(tmp_path / "out"), pipeline=file, steps_per_batch=14)
    assert caught.value.fix == "run the command again"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["columns", "safetensors"])
def test_batches_go_to_other_storage_in_the_same_bytes(
    format: str, episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    source, file, there = dataset(episodes), pipeline_file(FILTER), f"memory://apply-{format}"
    apply(source, str(tmp_path / "out"), pipeline=file, format=format, steps_per_batch=14)
    apply(source, there, pipeline=file, format=format, steps_per_batch=14)
    memory = fsspec.filesystem("memory")
    here = contents(tmp_path / "out")
    assert len(memory.find(f"/apply-{format}")) == len(here)
    for name in here.keys() - {"batches.json"}:
        assert memory.cat_file(f"/apply-{format}/{name}") == here[name]


def test_train_batches_are_not_taken_for_recordings(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    apply(dataset(episodes), str(tmp_path / "out"), pipeline=pipeline_file())
    with pytest.raises(NoData, match="train batches are here, not recordings"):
        open_sources(str(tmp_path / "out"))
