"""Sinks by name: what a sink of another package is asked, in which order, and what becomes of it when something fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed_packages import Install
from typer.testing import CliRunner

from offline_cli.cli.app import app
from offline_cli.converting.convert import convert
from offline_cli.converting.sink import OURS, sink_named
from offline_cli.errors import Interrupted
from offline_cli.formats import registry

Call = Callable[..., tuple[int, dict[str, Any]]]
DIARY = """
from offline_cli.converting.sink import OPTIONS, SinkKind, Written
class Diary:
    calls, contexts, known, raising, mark = [], [], frozenset(), None, "written"
    def __init__(self, target, context):
        self.target, self.episodes, self.steps, self.committed = target, 0, 0, False
        Diary.contexts.append(context)
    def note(self, *said):
        Diary.calls.append(said)
        if Diary.raising is not None and Diary.raising[0] == said[0]:
            raise Diary.raising[1]
    @property
    def ids_written(self):
        return Diary.known
    def __enter__(self):
        self.note("begin", self.target.name)
        return self
    def __exit__(self, kind, error, trace):
        Diary.calls.append(("end" if self.committed else "abort",))
    def write(self, batch):
        self.note("write", *batch.ids)
        self.episodes, self.steps = self.episodes + len(batch), self.steps + batch.num_steps
    def rehearse(self, batch):
        self.note("rehearse", *batch.ids)
    def quarantine(self, rejects):
        self.note("quarantine", *(one.where.rpartition(" ")[2] for one in rejects))
        rejects.clear()
    def commit(self, *, assumptions, episodes_lost):
        self.note("commit", dict(assumptions), episodes_lost)
        self.committed = True
        return Written(self.episodes, self.steps, 3, 99)
diary = SinkKind("diary", "a diary", Diary, takes=OPTIONS)
short = SinkKind("diary", "a diary", Diary)
"""
HEAD = "eps_id,t,obs,actions,rewards,terminateds,truncateds"
ROWS = ("a,0,0.5,1,1.0,0,0", "a,1,1.5,0,2.0,0,1", "b,0,2.5,0,1.0,1,0")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two episodes."""
    (tmp_path / "steps.csv").write_text("\n".join([HEAD, *ROWS]))
    return tmp_path / "steps.csv"


@pytest.fixture
def diary(install: Install) -> Any:
    """The sink of an installed package, which writes down what it is asked."""
    install("diaries", {"sinks": {"diary": "diary:diary"}}, diary=DIARY)
    return sink_named("diary").open


def without_prefix(calls: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What was asked; ids without what a conversion puts before them."""
    return [(name, *(one.rpartition("-")[2] if isinstance(one, str) else one for one in said)) for name, *said in calls]


def test_a_sink_is_begun_given_whole_episodes_and_committed_in_this_order(diary: Any, table: Path, tmp_path: Path) -> None:
    done = convert(table, tmp_path / "out", to="diary")
    assert without_prefix(diary.calls) == [
        ("begin", "out"),
        ("write", "a"),
        ("write", "b"),
        ("commit", dict(done.assumptions), 0),
        ("end",),
    ]
    assert (done.format, done.episodes, done.steps, done.shards) == ("diary", 2, 3, 3)


def test_episodes_that_the_sink_has_are_not_written_again(diary: Any, table: Path, tmp_path: Path) -> None:
    convert(table, tmp_path / "out", to="diary")
    first, second = [call for call in diary.calls if call[0] == "write"]
    diary.calls.clear()
    diary.known = frozenset(first[1:])
    convert(table, tmp_path / "out", to="diary", resume=True)
    assert [call for call in diary.calls if call[0] == "write"] == [second]
    assert diary.contexts[-1].resume


@pytest.mark.parametrize("at", ["write", "commit"])
def test_what_a_sink_raises_aborts_and_is_told_with_its_package(
    diary: Any, table: Path, tmp_path: Path, call: Call, at: str
) -> None:
    diary.raising = at, RuntimeError("no ink")
    code, found = call("convert", table, "--out", tmp_path / "out", "--to", "diary")
    assert (code, found["error"]["what"]) == (3, "the package diaries raised RuntimeError('no ink')")
    assert diary.calls[-1] == ("abort",)


def test_an_interruption_aborts_and_does_not_promise_what_only_our_datasets_do(diary: Any, table: Path, tmp_path: Path) -> None:
    diary.raising = "write", KeyboardInterrupt()
    with pytest.raises(Interrupted) as caught:
        convert(table, tmp_path / "out", to="diary")
    assert "--resume" not in caught.value.fix
    assert diary.calls[-1] == ("abort",)


@pytest.mark.parametrize(("name", "value"), [("max_rows_per_file", 7), ("resume", True)])
def test_an_option_that_the_sink_does_not_take_is_refused_by_name_before_anything_is_read(
    install: Install, tmp_path: Path, call: Call, name: str, value: Any
) -> None:
    install("diaries", {"sinks": {"diary": "diary:short"}}, diary=DIARY)
    (tmp_path / "steps.csv").write_text("no table")
    option = f"--{name.replace('_', '-')}"
    code, found = call(
        "convert",
        tmp_path / "steps.csv",
        "--out",
        tmp_path / "out",
        "--to",
        "diary",
        option,
        *([] if value is True else [value]),
    )
    assert (code, found["error"]["what"]) == (2, f"the sink 'diary' does not support {option}")


# ---- names ----


# ---- --list-formats ----


def test_the_list_of_formats_has_ours_with_words_and_plugins_by_package_and_imports_nothing(install: Install) -> None:
    entries = {"sinks": {"spied": "spying:x"}, "readers": {"spied": "spying:x"}}
    install("spying", entries, spying="raise AssertionError('imported')")
    done = CliRunner().invoke(app, ["convert", "--list-formats", "--json"])
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert [one["name"] for one in found["readers"]] == [*registry.OURS, "spied"]
    assert [one["name"] for one in found["sinks"]] == [*OURS, "spied"]
    assert found["sinks"][-1] == {
        "name": "spied",
        "words": "not imported here: see spying 1.0",
        "package": "spying",
        "keeps": "",
    }
    assert all(one["words"] for one in found["readers"])
    assert [one["name"] for one in found["readers"][:-1] + found["sinks"][:-1] if not 0 < len(one["keeps"]) <= 120] == []
    assert "spying" not in sys.modules
