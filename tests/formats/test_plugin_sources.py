"""What another package's reader or sink gets wrong is its own mistake, by name, before anything is written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from offline_cli import convert
from offline_cli.cli.failures import explain
from offline_cli.cli.invocation import Invocation
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.reader import PluginSource
from offline_cli.formats.source import FileSource, Fragments
from offline_cli.tally import Rejects, Tally

STEPS = 2
WHOLE = EpisodeBatch(
    ids=("a",),
    starts=np.array([0, STEPS]),
    obs=np.zeros((STEPS + 1, 2), np.float32),
    actions=np.zeros(STEPS, np.int64),
    rewards=np.ones(STEPS),
    terminated=np.array([True]),
    truncated=np.array([False]),
)


class Given(FileSource):
    """Yields what it was made with."""

    format: ClassVar[str] = "given"
    item: Any = Fragments(WHOLE)

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        yield self.item


def read(item: Any) -> list[Fragments]:
    source = Given([], "here")
    source.item = item
    return list(PluginSource(source, "given").fragments(Tally(), Rejects()))


FAULTS: dict[str, Any] = {
    "a bare batch": WHOLE,
    "something else in it": Fragments("a"),  # type: ignore[arg-type]
    "a column of rewards": Fragments(replace(WHOLE, rewards=np.ones((STEPS, 1)))),
    "whole rewards": Fragments(replace(WHOLE, rewards=np.ones(STEPS, np.int64))),
    "objects": Fragments(replace(WHOLE, actions=np.array([None, 1], object))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fragments_of_another_form_are_refused_by_reader(fault: str) -> None:
    with pytest.raises(BadData, match="'given'"):
        read(FAULTS[fault])


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that commands can name as python:mine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "some.txt").write_text("x")
    return tmp_path / "mine.py"


READER = """
from offline_cli.formats.reader import Reader
from offline_cli.formats.source import FileSource, Fragments
class Source(FileSource):
    format = "mine"
    def fragments(self, tally, rejects):
        yield Fragments(1 / 0)
READER = Reader("mine", "mine", lambda files, context: Source(files, context.location))
"""


def test_what_a_reader_of_the_users_own_file_raises_is_its_own_with_its_line(module: Path, tmp_path: Path) -> None:
    module.write_text(READER)
    with pytest.raises(ZeroDivisionError) as caught:
        convert("some.txt", tmp_path / "D", from_="python:mine:READER")
    error = explain(caught.value, Invocation(("convert",)))
    assert (error.exit_code, "python:mine:READER raised ZeroDivisionError" in error.what) == (3, True)
    assert error.where == f"{module}, line 7"
