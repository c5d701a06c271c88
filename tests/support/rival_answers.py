"""What other packages answer: as stored, or asked again, by the Python of OFFLINE_CLI_RIVALS or an environment made for it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import rival_environments

TESTDATA = Path(__file__).resolve().parents[1] / "testdata"
LANES = [pytest.param("asked", marks=pytest.mark.nightly), "stored"]


def ask(rival: str, script: str | None, folder: Path) -> Path:
    """Have `script` write its answers to `folder`; skips where the packages of requirements/`rival`.txt cannot be installed."""
    python = os.environ.get("OFFLINE_CLI_RIVALS")
    if python is None:
        if not rival_environments.install(rival, rival_environments.REQUIREMENTS / f"{rival}.txt"):
            pytest.skip(f"{rival} cannot be installed here; name a Python that has it: OFFLINE_CLI_RIVALS=/path/to/python")
        python = rival_environments.interpreter(rival)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, str(script), str(folder)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def lane_of(request: pytest.FixtureRequest, stored: Path) -> Path:
    """The folder of answers of one of LANES: `stored`, or what the fixture `answered_anew` asks today."""
    found: Path = stored if request.param == "stored" else request.getfixturevalue("answered_anew")
    return found


def answer(folder: Path, stored: Path, name: str) -> dict[str, Any]:
    """What the package said; what it says today is what it said then."""
    with np.load(folder / f"{name}.npz") as held, np.load(stored / f"{name}.npz") as before:
        assert held.files == before.files
        for part in held.files:
            np.testing.assert_allclose(held[part], before[part], rtol=1e-5, atol=1e-6, err_msg=part)
        return dict(held)
