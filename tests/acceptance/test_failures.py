"""What goes wrong: every exit code of the documents, by the code and the place that the one JSON object names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

Run = Callable[..., tuple[int, dict[str, Any]]]


class Failure(NamedTuple):
    """A command, in a folder with `D` (our dataset), `table.csv`, `broken.parquet` and `empty/`, and how it ends."""

    exit_code: int
    code: str
    words: str  # of the command
    where: str  # a part of the place that is named


FAILURES = [
    # 2: usage
    Failure(2, "usage-error", "convert D", "convert"),
    Failure(2, "usage-error", "inspect D --no-such-option", "inspect"),
    Failure(2, "usage-error", "record CartPole-v1 --policy random --episodes 3 --steps 5 --out N", ""),
    Failure(2, "usage-error", "filter D --where length~3 --out N", "where"),
    Failure(2, "usage-error", "train-bc D --updates 5 --epochs 2 --out N", ""),
    Failure(2, "output-exists", "convert table.csv --mapping map.toml --out D", "D"),
    Failure(2, "output-exists", "record CartPole-v1 --policy random --episodes 1 --out D", "D"),
    # 3: data
    Failure(3, "no-data", "inspect empty", "empty"),
    Failure(3, "bad-data", "inspect broken.parquet", "broken.parquet"),
    Failure(3, "uncommitted", "inspect U", "U"),
    # 4: config, mapping, pipeline, environment, spaces
    Failure(4, "unknown-environment", "record NoSuch-v0 --policy random --episodes 1 --out N", "NoSuch-v0"),
    Failure(4, "bad-mapping", "convert table.csv --mapping wrong.toml --out N", "wrong.toml"),
    Failure(4, "bad-mapping", "convert table.csv --mapping other.toml --out N", "table.csv"),
    Failure(4, "bad-config", "train-bc D --config wrong-config.toml --out N", "wrong-config.toml"),
    Failure(4, "bad-config", "apply D --pipeline wrong-pipeline.toml --out N", "wrong-pipeline.toml"),
    # 5: storage
    Failure(5, "storage-not-found", "inspect nothing", "nothing"),
    Failure(5, "storage-not-found", "convert nothing --out N", "nothing"),
    # 7: gates
    Failure(7, "target-not-met", "inspect D --expect episodes=4", "D"),
    Failure(7, "target-not-met", "diff D D2", "D"),
]


@pytest.fixture(scope="module")
def folder(done: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run."""
    made = tmp_path_factory.mktemp("failures")
    for name, seed in (("D", 1), ("D2", 2), ("U", 3)):
        done("record", "CartPole-v1", "--policy", "random", "--episodes", 3, "--seed", seed, "--out", made / name)
    (made / "U" / "manifest.json").rename(made / "U" / "_writing.json")
    (made / "empty").mkdir()
    (made / "broken.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    (made / "table.csv").write_text("ride,t,x,a,r\n1,0,0.5,1,0\n1,1,0.25,0,1\n")
    columns = '[columns]\neps_id = "ride"\nt = "t"\nobs = ["x"]\nactions = "a"\nrewards = "r"\n'
    (made / "map.toml").write_text(columns)
    (made / "other.toml").write_text(columns.replace('"x"', '"y"'))
    (made / "wrong.toml").write_text("[columns]\nno_such = 3\n")
    (made / "wrong-config.toml").write_text("no_such = 3\nbatch_size = -1\n")
    (made / "wrong-pipeline.toml").write_text('kind = "learner"\n[[pieces]]\nname = "no_such"\n')
    return made


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: f"{failure.exit_code} {failure.words}")
def test_a_failure_has_its_exit_code_code_and_place(
    failure: Failure, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(path for path in folder.rglob("*"))
    exit_code, told = run(*failure.words.split())
    error = told["error"]
    assert (exit_code, error["code"]) == (failure.exit_code, failure.code), error
    assert told["exit_code"] == exit_code
    assert failure.where in error["where"]
    assert error["what"]
    assert error["fix"]
    assert sorted(path for path in folder.rglob("*")) == before, "nothing is left behind"
