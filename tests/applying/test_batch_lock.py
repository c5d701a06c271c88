"""One writer of train batches at a time: a second one is told, a dead one taken over from; a replaced one touches nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli import apply, convert, repair, validate
from offline_cli.applying import batch_folder
from offline_cli.applying.batch_folder import BatchFolder
from offline_cli.datasets import lease_record
from offline_cli.datasets.dataset import Dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import Locked, NoData, OutputExists, StorageError, TakenOver, Uncommitted

REPOSITORY = Path(__file__).resolve().parents[2]
FILTER = '[[pieces]]\nname = "mean_std_filter"\n'
Apply = Callable[..., Any]
AtBatch = Callable[..., None]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def set_note(folder: Path, **changes: Any) -> None:
    note = folder / "_writing.json"
    note.write_text(json.dumps({**json.loads(note.read_bytes()), **changes}))


@pytest.fixture
def source(episodes: EpisodeBatch, dataset: Callable[..., str]) -> str:
    """A dataset of which `applied` makes three batches."""
    return dataset(episodes)


@pytest.fixture
def applied(source: str, pipeline_file: Callable[..., str]) -> Apply:
    """Applies a pipeline that learns to `source`."""
    file = pipeline_file(FILTER)
    return lambda out, **options: apply(source, str(out), pipeline=file, steps_per_batch=14, **options)


@pytest.fixture
def at_batch(monkeypatch: pytest.MonkeyPatch) -> AtBatch:
    """Has something done before batch number `number` is written, once."""

    def arrange(number: int, do: Callable[[], object]) -> None:
        write = BatchFolder.write

        def watched(self: BatchFolder, *given: Any, **named: Any) -> None:
            if len(self.files) == number:
                monkeypatch.setattr(BatchFolder, "write", write)
                do()
            write(self, *given, **named)

        monkeypatch.setattr(BatchFolder, "write", watched)

    return arrange


class TestASecondWriter:
    """Whatever it was told to do, it may not while the first is at work."""

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_it_gets_exit_5_and_the_first_goes_on(
        self, overwrite: bool, applied: Apply, at_batch: AtBatch, tmp_path: Path
    ) -> None:
        told: list[Locked] = []

        def second() -> None:
            with pytest.raises(Locked, match=f"process {os.getpid()} on {socket.gethostname()}") as caught:
                applied(tmp_path / "out", overwrite=overwrite)
            told.append(caught.value)

        at_batch(2, second)
        assert applied(tmp_path / "out").batches == 3
        assert [error.exit_code for error in told] == [5]
        assert len(contents(tmp_path / "out")) == 5

    def test_one_that_begins_while_the_first_prepares_gets_exit_5_too(
        self, applied: Apply, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        enter, out = BatchFolder.__enter__, tmp_path / "out"

        def then_another(self: BatchFolder) -> BatchFolder:
            monkeypatch.setattr(BatchFolder, "__enter__", enter)
            begun = enter(self)
            with pytest.raises(Locked):
                applied(out)
            return begun

        monkeypatch.setattr(BatchFolder, "__enter__", then_another)
        assert applied(out).batches == 3

    @pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
    def test_a_writer_of_datasets_is_kept_out_as_well(
        self, options: dict[str, bool], source: str, applied: Apply, at_batch: AtBatch, tmp_path: Path
    ) -> None:
        def second() -> None:
            with pytest.raises(Locked):
                convert(source, str(tmp_path / "out"), **options)

        at_batch(1, second)
        assert applied(tmp_path / "out").batches == 3


class TestTakenOver:
    """A writer that was replaced ends with exit 5, and touches nothing more."""

    @pytest.mark.parametrize("number", [0, 1, 2])
    @pytest.mark.parametrize("format", ["columns", "safetensors"])
    def test_before_a_batch_gets_its_name(
        self, number: int, format: str, applied: Apply, at_batch: AtBatch, tmp_path: Path
    ) -> None:
        out, before = tmp_path / "out", {}

        def replaced() -> None:
            set_note(out, token="another's", pid=4711, host="elsewhere")
            before.update(contents(out))

        at_batch(number, replaced)
        with pytest.raises(TakenOver, match="process 4711 on elsewhere") as caught:
            applied(out, format=format)
        assert (caught.value.exit_code, caught.value.code) == (5, "taken-over")
        assert contents(out) == before
        assert (out / "data").is_dir(), "the other one may be about to write into it"

    @pytest.mark.parametrize("name", ["connectors.msgpack", "batches.json"])
    def test_before_the_commit(self, name: str, applied: Apply, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        out, before, commit, real = tmp_path / "out", {}, BatchFolder.commit, batch_folder.write_whole

        def replaced() -> None:
            set_note(out, token="another's")
            before.update(contents(out))

        def first_replaced(self: BatchFolder, *given: Any, **named: Any) -> Any:
            if name == "connectors.msgpack":
                replaced()
            return commit(self, *given, **named)

        def then_replaced(target: Any, *given: Any, **named: Any) -> None:
            real(target, *given, **named)
            if target.name == "connectors.msgpack":
                replaced()

        monkeypatch.setattr(BatchFolder, "commit", first_replaced)
        monkeypatch.setattr(batch_folder, "write_whole", then_replaced)
        with pytest.raises(TakenOver):
            applied(out)
        assert contents(out) == before
        assert "batches.json" not in before
        assert ("connectors.msgpack" in before) == (name == "batches.json")

    def test_after_the_commit_what_it_replaces_is_left_to_the_other_one(
        self, applied: Apply, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out, before, real = tmp_path / "out", {}, batch_folder.write_whole
        applied(out)

        def then_replaced(target: Any, *given: Any, **named: Any) -> None:
            real(target, *given, **named)
            if target.name == "batches.json":
                set_note(out, token="another's")
                (out / "connectors-2.msgpack").write_bytes(b"theirs")
                (out / "data" / "batch-000000-2.parquet").write_bytes(b"theirs")
                before.update(contents(out))

        monkeypatch.setattr(batch_folder, "write_whole", then_replaced)
        with pytest.raises(TakenOver):
            applied(out, overwrite=True)
        assert contents(out) == before
        assert "data/batch-000000.parquet" in before

    def test_an_error_of_a_writer_that_does_not_know_yet(self, applied: Apply, at_batch: AtBatch, tmp_path: Path) -> None:
        out, before = tmp_path / "out", {}

        def replaced() -> None:
            set_note(out, token="another's")
            before.update(contents(out))
            raise ValueError("a bug")

        at_batch(2, replaced)
        with pytest.raises(ValueError, match="a bug") as caught:
            applied(out)
        assert contents(out) == before
        assert any("cleaning up failed too" in note and "taken it over" in note for note in caught.value.__notes__)


class TestAfterAnError:
    """All is as it was before, and nobody has to wait."""

    def test_a_failure_that_leaves_files_behind_can_be_overwritten_at_once(
        self, applied: Apply, at_batch: AtBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(self: BatchFolder) -> None:
            raise StorageError("unreachable", where="there", fix="none")

        def broken() -> None:
            raise ValueError("a bug")

        out = tmp_path / "out"
        at_batch(2, broken)
        with monkeypatch.context() as patch, pytest.raises(ValueError, match="a bug"):
            patch.setattr(BatchFolder, "_take_back", fail)
            applied(out)
        assert json.loads((out / "_writing.json").read_bytes())["left"]
        with pytest.raises(OutputExists, match="an unfinished set of train batches is here"):
            applied(out)
        assert applied(out, overwrite=True).batches == 3

    def test_a_gap_in_the_files_does_not_keep_the_others_from_being_taken_back(
        self, applied: Apply, at_batch: AtBatch, tmp_path: Path
    ) -> None:
        def broken() -> None:
            (tmp_path / "out" / "data" / "batch-000000.parquet").unlink()
            raise ValueError("a bug")

        at_batch(2, broken)
        with pytest.raises(ValueError, match="a bug"):
            applied(tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_an_unfinished_one_that_was_to_be_overwritten_stays_unfinished(
        self, applied: Apply, at_batch: AtBatch, killed: Path
    ) -> None:
        before = contents(killed)

        def broken() -> None:
            raise ValueError("a bug")

        at_batch(1, broken)
        with pytest.raises(ValueError, match="a bug"):
            applied(killed, overwrite=True)
        assert contents(killed) == before


@pytest.fixture(scope="session")
def killed_once(tmp_path_factory: pytest.TempPathFactory, random_batch: Callable[..., EpisodeBatch]) -> dict[str, bytes]:
    """What a process left that was killed at its third batch, after the second."""
    import gymnasium as gym
    import numpy as np

    from offline_cli.datasets.writer import DatasetWriter
    from offline_cli.files.locations import open_location

    place = tmp_path_factory.mktemp("killed")
    spaces: dict[str, Any] = {
        "observation_space": gym.spaces.Box(-1, 1, (4,), np.float32),
        "action_space": gym.spaces.Discrete(2),
    }
    with DatasetWriter(open_location(place / "D"), format="episodes", action_scale="env", **spaces) as writer:
        writer.write(random_batch(*spaces.values(), lengths=(5, 9, 1, 7, 12, 6)))
        writer.commit()
    code = """
    import os, signal
    from offline_cli import ConnectorV2

    class Dies(ConnectorV2):
        calls = 0
        def __call__(self, *, batch, **kwargs):
            type(self).calls += 1
            if type(self).calls == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return batch
    """
    (place / "dies_at_the_third.py").write_text(textwrap.dedent(code))
    (place / "pipeline.toml").write_text('kind = "learner"\n[[pieces]]\nuse = "dies_at_the_third:Dies"\n')
    words = ["-m", "offline_cli", "apply", "D", "--pipeline", "pipeline.toml", "--out", "out", "--steps-per-batch", "14"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(place)])}
    done = subprocess.run([sys.executable, *words], cwd=place, env=env, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    return contents(place / "out")


@pytest.fixture
def killed(killed_once: dict[str, bytes], tmp_path: Path) -> Path:
    """A folder of its own with that in it."""
    for name, data in killed_once.items():
        (tmp_path / "killed" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "killed" / name).write_bytes(data)
    assert sorted(killed_once) == ["_writing.json", "data/batch-000000.parquet", "data/batch-000001.parquet"]
    return tmp_path / "killed"


@pytest.mark.nightly
class TestOfAWriterThatWasKilled:
    """`--overwrite` begins again, once it is certain that it is gone; nothing else takes what it left for something whole."""

    def test_one_of_this_machine_is_overwritten_at_once(self, applied: Apply, killed: Path) -> None:
        began = time.monotonic()
        assert applied(killed, overwrite=True).batches == 3
        assert time.monotonic() - began < lease_record.WATCH / 2
        assert sorted(contents(killed)) == [
            "batches.json",
            "connectors-1.msgpack",
            *(f"data/batch-{number:06d}-1.parquet" for number in range(3)),
        ]

    def test_one_of_another_machine_counts_while_its_beat_is_young(self, applied: Apply, killed: Path) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        set_note(killed, host=f"not-{socket.gethostname()}", beat=now)
        with pytest.raises(Locked, match="not-"):
            applied(killed, overwrite=True)

    @pytest.mark.parametrize("options", [{}, {"drop_broken": True}, {"dry_run": True}])
    def test_repair_refuses_it_and_says_what_to_do(self, options: dict[str, bool], killed: Path) -> None:
        before = contents(killed)
        with pytest.raises(NoData, match="an unfinished set of train batches is here, not a dataset") as caught:
            repair(str(killed), **options)
        assert caught.value.exit_code == 3
        assert "offline-cli apply D --pipeline pipeline.toml" in caught.value.fix
        assert caught.value.fix.endswith("--overwrite")
        assert contents(killed) == before

    def test_readers_are_told_what_it_was_to_be(self, killed: Path) -> None:
        with pytest.raises(Uncommitted, match="a writer has not finished this set of train batches") as caught:
            Dataset.open(str(killed))
        assert "--overwrite" in caught.value.fix
        assert "--resume" not in caught.value.fix
        (problem,) = (one for one in validate(str(killed)).problems if one.code == "uncommitted")
        assert "set of train batches" in problem.what

    @pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
    def test_no_dataset_is_written_over_it(self, options: dict[str, bool], source: str, killed: Path) -> None:
        before = contents(killed)
        with pytest.raises(OutputExists, match="an unfinished set of train batches is here, not a dataset"):
            convert(source, str(killed), **options)
        assert contents(killed) == before


def test_repair_refuses_train_batches_that_are_whole(applied: Apply, tmp_path: Path) -> None:
    applied(tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(NoData, match="a set of train batches is here, not a dataset"):
        repair(str(tmp_path / "out"))
    assert contents(tmp_path / "out") == before
