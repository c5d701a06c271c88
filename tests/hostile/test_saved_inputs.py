"""Inputs that fuzzing found interesting, tried again: each ends in data or in a named error of the data."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_mutations import MUTATORS
from fuzz_seeds import MAKERS, seeds_of
from fuzz_targets import HDF5, TARGETS, check

HERE = Path(__file__).resolve().parent


def test_every_target_has_seeds_and_a_mutator() -> None:
    assert TARGETS.keys() == MAKERS.keys() == MUTATORS.keys()


@pytest.mark.parametrize("target", TARGETS)
def test_saved_inputs_are_read_or_refused_by_name(target: str) -> None:
    answers = [check(TARGETS[target], data) for data in seeds_of(target)]
    assert "" in answers  # some can be read


@pytest.mark.parametrize("target", HDF5)
def test_mutated_files_are_read_or_refused_by_name(target: str) -> None:
    rng = random.Random(1)
    seeds = seeds_of(target)
    for _ in range(10):
        check(TARGETS[target], MUTATORS[target](rng.choice(seeds), rng))


@pytest.mark.nightly
@pytest.mark.parametrize("target", HDF5)
def test_a_thousand_mutated_files_of_each_hdf5_reader_are_read_or_refused(target: str, tmp_path: Path) -> None:
    words = [target, "--engine", "plain", "--runs", "1000", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, str(HERE / "fuzz.py"), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["inputs"] >= 1000
    assert report["peak_mib"] < 512


@pytest.mark.integration
def test_a_fuzz_run_reports_what_it_did(tmp_path: Path) -> None:
    words = ["pickle", "--engine", "plain", "--runs", "2500", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, str(HERE / "fuzz.py"), *words], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["inputs"] == 2500
    assert sum(report["answers"].values()) == 2500
    assert 0 < report["peak_mib"] < 512
    assert report["exit"] == 0


@pytest.mark.integration
def test_a_fuzz_run_ends_with_the_input_that_crashes(tmp_path: Path) -> None:
    code = "import fuzz_targets, fuzz; fuzz_targets.TARGETS['info'] = lambda data: 1 / len(data[4:]); fuzz.main()"
    words = ["info", "--engine", "plain", "--worker", "--out", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, env=env)
    assert "ZeroDivisionError" in done.stderr
    (crash,) = (tmp_path / "crashes").iterdir()
    assert len(crash.read_bytes()) <= 4
