"""Applies each defect of defects.toml to a copy of the project, and says whether `make test` fails with it.

    python tests/defects/run.py [--only WORDS] [--first N] [-- PYTEST OPTIONS]

The tests that a defect names are run first, up to the first failure; where all of them pass, every test that `make test` runs.
Ends with exit status 1 where a defect is not caught, or where its line is not in its file any more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
COPIED = (
    "offline_cli",
    "schemas",
    "tests",
    "sample_data",
    "benchmarks",
    "docs",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
)
COPIED += ("CONTRIBUTING.md", "LICENSE", ".ci")


def main() -> int:
    """Run the defects that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="defects whose name holds this text")
    parser.add_argument("--named-tests-alone", action="store_true", help="do not go on to every test")
    given, pytest_options = parser.parse_known_args()
    defects = tomllib.loads((REPOSITORY / "tests/defects/defects.toml").read_text())["defect"]
    chosen = [one for one in defects if given.only in one["name"]]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        copy_to(copy)
        for defect in chosen:
            caught = _caught(defect, copy, pytest_options, everything=not given.named_tests_alone)
            print(f"{'caught' if caught else 'MISSED'}  {defect['name']}{f'  by {caught}' if caught else ''}", flush=True)
            missed += [] if caught else [defect["name"]]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} defects are caught")
    return 1 if missed else 0


def copy_to(copy: Path) -> None:
    copy.mkdir()
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy / name)


def _caught(defect: dict[str, Any], copy: Path, options: list[str], *, everything: bool) -> str:
    """The test that fails; empty where none does. Raises SystemExit where the defect's line is not there once."""
    file = copy / defect["file"]
    text = file.read_text(encoding="utf-8")
    if text.count(defect["before"]) != 1:
        raise SystemExit(f"{defect['name']}: its line is {text.count(defect['before'])} times in {defect['file']}")
    file.write_text(text.replace(defect["before"], defect["after"]), encoding="utf-8")
    try:
        found = _first_failure(copy, defect["tests"], options)
        return found or (_first_failure(copy, ["tests"], options) if everything else "")
    finally:
        file.write_text(text, encoding="utf-8")


def _first_failure(copy: Path, tests: list[str], options: list[str]) -> str:
    real_data = os.environ.get("OFFLINE_CLI_REAL_DATA", str(REPOSITORY.parent / "shared" / "real_data"))
    env = {**os.environ, "PYTHONPATH": str(copy), "OFFLINE_CLI_REAL_DATA": real_data, "PYTHONDONTWRITEBYTECODE": "1"}
    unmarked = "not integration and not nightly and not gpu"  # those that `make test` runs
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", unmarked, *options, *tests]
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1):
        return f"pytest ended with {done.returncode}: {(failures or [done.stdout[-200:]])[0]}"
    return failures[0].split(" - ")[0] if failures else ""


if __name__ == "__main__":
    sys.exit(main())
