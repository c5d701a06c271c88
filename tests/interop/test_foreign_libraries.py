"""Files of ours by the readers of Minari and d3rlpy themselves: what went in and out again is what these read before."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hdf5_trees import FOREIGN

from benchmarks import rival_environments
from offline_cli.converting.convert import convert

pytestmark = pytest.mark.nightly
Ask = Callable[[str, Path], Any]


@pytest.fixture
def ask() -> Ask:
    """What a library reads from a place, by the script that made the samples."""

    def answers(name: str, place: Path) -> Any:
        where = {"minari": "rllib"}.get(name, name)  # environments of rivals: Minari gets on with RLlib
        if not rival_environments.install(where, rival_environments.REQUIREMENTS / f"{where}.txt"):
            pytest.skip(f"{name} cannot be installed here")
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        words = [rival_environments.interpreter(where), str(FOREIGN / f"make_{name}.py"), str(place)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return answers


def stored(name: str) -> Any:
    return json.loads((FOREIGN / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["hdf5", "jpeg"])
def test_minari_reads_what_it_wrote_after_a_way_out_and_back(name: str, ask: Ask, tmp_path: Path) -> None:
    convert(FOREIGN / f"minari_{name}", tmp_path / "D")
    convert(tmp_path / "D", tmp_path / "M", to="minari")
    assert ask("minari", FOREIGN / f"minari_{name}" / "data") == stored(f"minari_{name}")
    assert ask("minari", tmp_path / "M" / "data") == stored(f"minari_{name}")


@pytest.mark.parametrize("name", ["vectors", "discrete", "two"])
def test_d3rlpy_reads_what_it_wrote_after_a_way_out_and_back(name: str, ask: Ask, tmp_path: Path) -> None:
    convert(FOREIGN / f"d3rlpy_{name}.h5", tmp_path / "D")
    convert(tmp_path / "D", tmp_path / "b.h5", to="d3rlpy")
    assert ask("d3rlpy", FOREIGN / f"d3rlpy_{name}.h5") == stored(f"d3rlpy_{name}")
    assert ask("d3rlpy", tmp_path / "b.h5") == stored(f"d3rlpy_{name}")
