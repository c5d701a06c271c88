"""The pipeline in docs/ci.md runs as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from warm_commands import Shell

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, script_shell: Shell) -> Path:
    """An empty folder in which all shell blocks of the page have run, as one script."""
    folder = tmp_path_factory.mktemp("ci")
    page = (REPOSITORY / "docs" / "ci.md").read_text(encoding="utf-8")
    script = "".join(re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL))
    done = script_shell(script, folder)
    assert done.returncode == 0, done.stderr
    return folder


def told(folder: Path, step: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{step}.json").read_text(encoding="utf-8"))
    return found


def test_the_data_passes_its_gate(ran: Path) -> None:
    assert [problem for problem in told(ran, "validate")["problems"] if problem["severity"] != "note"] == []


def test_a_deleted_row_fails_the_gate(ran: Path) -> None:
    found = told(ran, "damaged")
    warnings = {one["code"]: one["count"] for one in found["problems"] if one["severity"] == "warning"}
    assert (found["exit_code"], warnings) == (3, {"gap-in-episode": 1, "broken-chain": 1})


def test_the_policy_has_learned_from_rows_alone(ran: Path) -> None:
    assert told(ran, "train")["val_loss"] is not None
    assert (ran / "run" / "policy.safetensors").is_file()
