"""A reader and a sink of another package (tests/plugins/log_books): every command reads its files, `convert` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.datasets.dataset import Dataset

Call = Callable[..., tuple[int, dict[str, Any]]]
Told = Callable[..., dict[str, Any]]
SAMPLE = Path(__file__).resolve().parents[2] / "sample_data" / "rllib_cartpole_expert"
BOOK = """LOGBOOK 1 obs=2 actions=3
episode a
0.5 1.0 > 2 > 1.0
0.25 -1.0 > 0 > 0.5
end truncated 1.5 1.0
episode b
1e-3 0.0 > 1 > 2.0
end terminated 0.0 0.0
"""
pytestmark = pytest.mark.usefixtures("log_books")


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Two episodes."""
    (tmp_path / "diary.book").write_text(BOOK)
    return tmp_path / "diary.book"


@pytest.fixture
def cartpole(told: Told, tmp_path: Path) -> Path:
    """A folder with the sample recording as a book."""
    done = told("convert", SAMPLE, "--out", tmp_path / "log", "--to", "log-book", "--env", "CartPole-v1")
    assert (done["episodes"], done["shards"], done["format"]) == (20, 1, "log-book")
    return tmp_path / "log"


def test_a_book_is_recognised_and_converted(book: Path, tmp_path: Path, told: Told) -> None:
    assert told("convert", book, "--out", tmp_path / "D")["episodes"] == 2
    (batch,) = Dataset.open(str(tmp_path / "D")).batches()
    assert np.array_equal(batch.obs, np.array([[0.5, 1], [0.25, -1], [1.5, 1], [1e-3, 0], [0, 0]], np.float32))
    assert (batch.actions.tolist(), batch.rewards.tolist()) == ([2, 0, 1], [1.0, 0.5, 2.0])
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([False, True], [True, False])


def test_what_is_written_as_a_book_is_read_back_equal(cartpole: Path, tmp_path: Path, told: Told) -> None:
    told("convert", SAMPLE, "--out", tmp_path / "direct", "--env", "CartPole-v1")
    told("convert", cartpole, "--out", tmp_path / "back", "--from", "log-book")
    direct, back = (next(iter(Dataset.open(str(tmp_path / name)).batches())) for name in ("direct", "back"))
    for name in ("starts", "obs", "actions", "rewards", "terminated", "truncated"):
        assert np.array_equal(getattr(direct, name), getattr(back, name)), name


def test_a_broken_episode_is_rejected_by_its_line_and_the_others_are_read(book: Path, tmp_path: Path, call: Call) -> None:
    book.write_text(BOOK.replace("0.25", "much"))
    code, found = call("convert", book, "--out", tmp_path / "D")
    assert (code, found["error"]["where"]) == (3, f"{book} line 2")
    code, found = call("convert", book, "--out", tmp_path / "log", "--to", "log-book", "--on-error", "quarantine")
    assert (code, found["episodes"], found["episodes_lost"]) == (0, 1, 1)
    assert "line 2: episode a is broken" in (tmp_path / "log" / "rejected.txt").read_text()


def test_nothing_of_a_book_is_left_where_reading_fails(book: Path, tmp_path: Path, call: Call) -> None:
    book.write_text(BOOK.replace("1e-3", "much"))
    assert call("convert", book, "--out", tmp_path / "log", "--to", "log-book")[0] == 3
    assert not list((tmp_path / "log").glob("*"))


def test_spaces_that_have_no_place_in_a_book_are_refused(tmp_path: Path, call: Call) -> None:
    rows = [{"eps_id": "a", "t": t, "obs": [0.0], "actions": [0.5], "rewards": 1.0, "terminateds": t == 1} for t in range(2)]
    (tmp_path / "steps.json").write_text("\n".join(map(json.dumps, rows)))
    code, found = call("convert", tmp_path / "steps.json", "--out", tmp_path / "log", "--to", "log-book")
    assert (code, found["error"]["code"]) == (4, "unsupported-space")
