"""Fuzzing: seeds, inputs that runs found interesting and mutated ones end in data or in a named error of the data."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_mutations import MUTATORS
from fuzz_seeds import MAKERS, seeds_of
from fuzz_targets import TARGETS, check

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("target", TARGETS)
def test_saved_and_mutated_inputs_are_read_or_refused_by_name(target: str) -> None:
    assert TARGETS.keys() == MAKERS.keys() == MUTATORS.keys()
    seeds, rng = seeds_of(target), random.Random(1)
    mutated = [MUTATORS[target](rng.choice(seeds), rng) for _ in range(10)]
    answers = [check(TARGETS[target], data) for data in (*seeds, *mutated)]
    assert "" in answers  # some can be read


@pytest.mark.integration
def test_a_fuzz_run_reports_what_it_did(tmp_path: Path) -> None:
    words = [
        "cell",
        "--runs",
        "1500",
        "--out",
        str(tmp_path),
        "--rss-mb",
        "65536",
    ]  # a child counts this process's memory as its own
    done = subprocess.run([sys.executable, str(HERE / "fuzz.py"), *words], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["inputs"], sum(report["answers"].values())) == (1500, 1500)
    assert report["peak_mib"] > 0
