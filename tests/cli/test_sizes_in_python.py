"""Sizes of memory: the functions take what the commands take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli import apply, convert, inspect, train_bc, validate
from offline_cli.errors import BadConfig, UsageError

TAKES: dict[str, Callable[..., Any]] = {
    "convert": lambda source, out, limit: convert(source, out, memory_limit=limit),
    "inspect": lambda source, out, limit: inspect(source, memory_limit=limit),
    "validate": lambda source, out, limit: validate(source, memory_limit=limit),
    "train_bc": lambda source, out, limit: train_bc(source, out, memory_limit=limit, updates=1),
    "apply": lambda source, out, limit: apply(source, str(out), pipeline=out.parent / "p.toml", memory_limit=limit),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "log.csv").write_text("eps_id,obs,actions,rewards,terminateds\na,0.5,0,1,0\na,0.6,1,1,1\n", encoding="utf-8")
    (tmp_path / "p.toml").write_text('kind = "learner"\n', encoding="utf-8")
    return tmp_path / "log.csv"


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("limit", ["1GiB", "1500MB", 1 << 30])
def test_a_function_takes_a_limit_of_memory_as_its_command_does(
    name: str, limit: int | str, source: Path, tmp_path: Path
) -> None:
    TAKES[name](source, tmp_path / "out", limit)


@pytest.mark.parametrize("name", [name for name in TAKES if name != "train_bc"])
@pytest.mark.parametrize(
    ("limit", "said"), [("much", "is not a size"), (2.5, "whole number or text"), (True, "whole number or text")]
)
def test_what_is_no_size_is_refused_by_name(name: str, limit: Any, said: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        TAKES[name](source, tmp_path / "out", limit)


@pytest.mark.parametrize(("limit", "kind"), [("much", UsageError), (2.5, BadConfig), (True, BadConfig)])
def test_training_refuses_what_is_no_size_by_name(limit: Any, kind: type[Exception], source: Path, tmp_path: Path) -> None:
    with pytest.raises(kind, match="is not a size"):
        TAKES["train_bc"](source, tmp_path / "out", limit)
