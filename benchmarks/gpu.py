"""`make gpu`, or `python -m benchmarks.gpu`: the tests marked `gpu` and every GPU question, in nine minutes, as one JSON.

It takes the Python and torch that are there, installs nothing and needs no network; small packages that are missing come from
wheels (`--wheels`, filled by `make gpu-wheels`) through a temporary folder. Every test run and question is a process of its own
with a time limit, and the JSON is written anew after each, so that what was measured is kept however this ends.
`python -m benchmarks.page gpu.json` takes it into docs/benchmarks.md.

Exit status: 0 all passed and was measured; 1 a test or question failed or was not reached; 6 no GPU, or packages are missing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET  # of a file that pytest has just written
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_packages import SMALL, missing, provided

__all__ = ["FORMAT", "LIMITS", "collect", "main"]

REPOSITORY = Path(__file__).resolve().parent.parent
FORMAT = "offline-cli-gpu"
BUDGET = 530.0  # seconds for all of it: nine minutes, less the start and the end
TESTS = "tests"
LIMITS: Mapping[str, float] = {
    TESTS: 180.0,
    "cuda_small_update": 60.0,
    "cuda_algorithms": 60.0,
    "cuda_large_update": 90.0,
    "cuda_frames": 90.0,
    "cuda_utilisation": 60.0,
    "cuda_cold_start": 240.0,
}
"""Seconds for each part, in order; where the budget is nearly spent, what is left of it."""

LEAST = 15.0  # seconds with which a part is worth starting
MARK = "mark.gpu"  # in the files whose tests need a GPU: only these are imported, the others need more packages
PYTEST = ["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
DONE, FAILED, NO_GPU = 0, 1, 6
PROBE = """
import json, torch
found = torch.cuda.is_available()
about = {"torch": torch.__version__, "cuda": torch.version.cuda, "found": found}
if found:
    properties = torch.cuda.get_device_properties(0)
    about |= {"name": properties.name, "memory_gib": round(properties.total_memory / 2**30, 1)}
    about |= {"capability": f"{properties.major}.{properties.minor}"}
print(json.dumps(about))
"""
Run = Callable[[list[str], float], tuple[int | None, str]]
"""Runs Python with arguments for so many seconds; its exit status, None where the time was over, and what it printed."""


class NoGpu(Exception):
    """Why nothing can be measured here, and what to do."""


def main(arguments: list[str]) -> int:
    """See the module."""
    options = _options(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="offline-cli-gpu-") as unpacked:
        try:
            about = _probed(_runner(os.environ))
            run = _runner(_environment(options.wheels, Path(unpacked)))
        except NoGpu as why:
            print(f"no GPU figures: {why}\nexit status {NO_GPU}", file=sys.stderr)
            return NO_GPU
        options.out.mkdir(parents=True, exist_ok=True)
        target = options.out / "gpu.json"
        found = collect(run, about, target, budget=BUDGET - (time.monotonic() - began))
    status = DONE if not found["failed"] and not found["not_reached"] else FAILED
    for what, names in (("failed", found["failed"]), ("not reached", found["not_reached"])):
        if names:
            print(f"{what}: {', '.join(names)}", file=sys.stderr)
    print(f"{target}: {found['seconds']:.0f} s\nexit status {status}", file=sys.stderr)
    return status


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    out = Path(os.environ.get("OUT") or REPOSITORY / "out")
    parser.add_argument("--out", type=Path, default=out, help="folder for gpu.json; default: $OUT, else out")
    wheels = REPOSITORY / ".gpu-wheels"
    parser.add_argument("--wheels", type=Path, default=wheels, help="folder of wheels of packages that are missing")
    return parser.parse_args(arguments)


def _environment(wheels: Path, unpacked: Path) -> dict[str, str]:
    """For child processes: they can import what had to be unpacked. Raises NoGpu naming all that is missing."""
    absent = missing()
    lacking = provided(absent, wheels, unpacked)
    if lacking:
        named = ", ".join(SMALL.get(name, name) for name in lacking)
        fix = f"`make gpu-wheels`, on a machine with a network, puts wheels of the small ones into {wheels}"
        raise NoGpu(f"{sys.executable} lacks {named}; {fix}")
    path = [str(REPOSITORY), *([str(unpacked)] if absent else []), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONDONTWRITEBYTECODE": "1"}


def _runner(environment: Mapping[str, str]) -> Run:
    def run(arguments: list[str], limit: float) -> tuple[int | None, str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that what it starts ends with it
        )
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            said, _ = process.communicate()
            return None, said
        return process.returncode, said

    return run


def _probed(run: Run) -> dict[str, Any]:
    """Card, driver and torch. Raises NoGpu."""
    if missing(["torch"]):
        raise NoGpu(f"{sys.executable} has no torch; name a Python that has it: make gpu PYTHON=/path/to/python")
    status, said = run(["-c", PROBE], 120.0)
    if status != 0:
        raise NoGpu(f"torch cannot be used: {_last(said)}")
    about: dict[str, Any] = json.loads(said.splitlines()[-1])
    if not about["found"]:
        built = "without CUDA" if about["cuda"] is None else f"for CUDA {about['cuda']}"
        raise NoGpu(f"torch {about['torch']}, built {built}, finds no usable GPU")
    return about | {"driver": _driver()}


def _driver() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError) as err:
        return f"unknown ({err})"


def collect(run: Run, about: Mapping[str, Any], target: Path, *, budget: float) -> dict[str, Any]:
    """Run every part within `budget` seconds and keep what came of it in `target`, written anew after each."""
    began = time.monotonic()
    found: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": dict(about),
        "python": sys.version.split()[0],
        "tests": None,
        "questions": {},
        "failed": [],
        "not_reached": list(LIMITS),
        "seconds": 0.0,
    }
    for name, most in LIMITS.items():
        limit = min(most, budget - (time.monotonic() - began))
        if limit >= LEAST:
            print(f"{name} ...", file=sys.stderr, flush=True)
            part = _tested(run, limit) if name == TESTS else _answered(run, name, limit)
            found["not_reached"].remove(name)
            if part["error"]:
                found["failed"].append(name)
                print(f"{name} failed: {part['error']}", file=sys.stderr, flush=True)
            if name == TESTS:
                found["tests"] = part
            else:
                found["questions"][name] = part
        found["seconds"] = round(time.monotonic() - began, 1)
        target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def _tested(run: Run, limit: float) -> dict[str, Any]:
    """What came of the tests marked `gpu`; an error where one failed or was skipped, none ran, or the time was over."""
    with tempfile.TemporaryDirectory(prefix="offline-cli-gpu-") as folder:
        report = Path(folder) / "report.xml"
        status, said = run([*PYTEST, *_test_files(), f"--junit-xml={report}", f"--basetemp={folder}/tests"], limit)
        cases = list(ET.parse(report).getroot().iter("testcase")) if report.is_file() else []
    results = {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in cases}
    wrong = [name for name, outcome in results.items() if outcome != "passed"]
    error = ""
    if status is None:
        error = f"no end within {limit:.0f} s"
    elif status or wrong or not results:
        error = f"{len(wrong)} of {len(results)} did not pass (pytest's exit status {status})"
    return {"passed": len(results) - len(wrong), "results": results, "error": error, "said": said[-6000:] if error else ""}


def _test_files() -> list[str]:
    files = sorted((REPOSITORY / "tests").rglob("test_*.py"))
    return [str(file.relative_to(REPOSITORY)) for file in files if MARK in file.read_text(encoding="utf-8")]


def _outcome(case: ET.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return f"{kind}: {found.get('message', '')}"[:500]
    return "passed"


def _answered(run: Run, name: str, limit: float) -> dict[str, Any]:
    """The rows of a question with the machine; an error where the process failed or a row was not measured."""
    status, said = run(["-m", "benchmarks.gpu", "--question", name], limit)
    if status != 0:
        error = f"no end within {limit:.0f} s" if status is None else f"exit status {status}: {_last(said)}"
        return {"machine": None, "rows": [], "error": error, "said": said[-6000:]}
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    reasons = [row["not_measured"] for row in answer["rows"] if row["not_measured"]]
    return {**answer, "error": f"not measured: {'; '.join(reasons)}" if reasons or not answer["rows"] else "", "said": ""}


def _last(said: str) -> str:
    return (said.strip().splitlines() or ["it said nothing"])[-1]


def answer(name: str) -> None:
    """In a process of its own: print the rows of a question, as one line of JSON."""
    from benchmarks.run import answered

    print(json.dumps(answered(name)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--question"]:
        answer(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:]))
