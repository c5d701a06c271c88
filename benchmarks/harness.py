"""Paired timings: ours and the rival in turn, the median of the pairs' ratios; a row says where a rival or its data is missing.

A rate is a function that does the work once and gives units per second. RLlib and Minari are scripts of `rivals/`, each in a
process and an environment of its own (`rival_environments`), asked for one figure at a time.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import queue
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, Self

from benchmarks.rival_environments import Missing, interpreter

__all__ = [
    "NO_FLOOR",
    "Floor",
    "Missing",
    "Rate",
    "Rival",
    "Row",
    "against",
    "machine",
    "missing",
    "paired",
    "recording",
    "timed",
]

Rate = Callable[[], float]
HERE: Final = Path(__file__).resolve().parent
BUSY: Final = 0.75  # load per core, of other things, from which figures are no longer the machine's
PATIENCE: Final = 900.0  # seconds for one answer of a rival


@dataclass(frozen=True, slots=True)
class Floor:
    """The figure below which a change must not take a row: its ratio, or our own rate. `words` says it as one would say it."""

    at_least: float | None
    of: Literal["ratio", "ours"] = "ratio"
    words: str = ""


NO_FLOOR: Final = Floor(None)


@dataclass(frozen=True, slots=True)
class Row:
    """One answer: how much of `unit` ours and the rival did, and the ratio of the two, measured pair by pair."""

    question: str
    unit: str
    ours: float | None  # None, like `rival` and `ratio`: not measured
    rival: float | None
    ratio: float | None  # median of the pairs' ratios; above 1: ours is better
    rival_name: str  # with its version
    pairs: int
    spread: tuple[float, float] | None = None  # quartiles of the pairs' ratios
    floor: Floor = NO_FLOOR
    not_measured: str = ""  # why not

    def met(self) -> bool | None:
        """Whether the figure is above its floor; None without a floor or a figure."""
        value = getattr(self, self.floor.of)
        return None if value is None or self.floor.at_least is None else value >= self.floor.at_least

    def as_dict(self) -> dict[str, Any]:
        """Plain values, and `met`."""
        return {**asdict(self), "met": self.met()}


def timed(call: Callable[[], object], amount: float) -> Rate:
    """The rate of a call that does `amount` units."""

    def rate() -> float:
        start = time.perf_counter()
        call()
        return amount / (time.perf_counter() - start)

    return rate


def paired(
    question: str, ours: Rate, rival: Rate, *, unit: str, rival_name: str, floor: Floor = NO_FLOOR, pairs: int = 7
) -> Row:
    """Ask `ours` and `rival` in turn, `pairs` times, after each has warmed up; a single pair needs no warm-up."""
    if pairs > 1:
        ours(), rival()
    rates = [(ours(), rival()) for _ in range(pairs)]
    mine, theirs = (statistics.median(column) for column in zip(*rates, strict=True))
    ratios = sorted(fast / slow for fast, slow in rates)
    spread = (ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4])
    return Row(question, unit, mine, theirs, statistics.median(ratios), rival_name, pairs, spread, floor)


def missing(question: str, reason: object, *, unit: str = "", rival_name: str = "", floor: Floor = NO_FLOOR) -> Row:
    """The row of a question that this machine cannot answer."""
    return Row(question, unit, None, None, None, rival_name, 0, floor=floor, not_measured=str(reason))


def against(
    script: str,
    question: str,
    ours: Rate,
    *,
    unit: str,
    rival_name: str,
    floor: Floor = NO_FLOOR,
    pairs: int = 3,
    **arguments: Any,
) -> Row:
    """`paired`, the rival being a script of `rivals/` with these arguments; a row that says why where it cannot run."""
    try:
        with Rival(script, **arguments) as rival:
            named = f"{rival_name} ({rival.versions})"
            return paired(question, ours, rival, unit=unit, rival_name=named, floor=floor, pairs=pairs)
    except Missing as error:
        return missing(question, error, unit=unit, rival_name=rival_name, floor=floor)


class Rival:
    """A rival's process: a context manager, and a rate. Raises Missing without its environment, or where the script fails."""

    def __init__(self, script: str, *, python: str | None = None, **arguments: Any) -> None:
        self._script, self._arguments, self._python = script, arguments, python
        self.versions = ""

    def __enter__(self) -> Self:
        python = self._python or interpreter("rllib")
        command = [python, str(HERE / "rivals" / self._script), json.dumps(self._arguments)]
        ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # would lend the rival our packages
        env = {name: value for name, value in os.environ.items() if name not in ours}
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # lives as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=env
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self.versions = self._answer()["versions"]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __call__(self) -> float:
        """Units per second of one run."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer will say why
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        figure = self._answer()
        return float(figure["amount"] / figure["seconds"])

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise Missing(f"{self._script} said nothing for {PATIENCE:.0f} s") from None
        if not line:
            raise Missing(f"{self._script} failed: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"


def recording(name: str) -> Path:
    """A recording by another program: below real_data beside the repository, or OFFLINE_CLI_REAL_DATA. Raises Missing."""
    folder = Path(os.environ.get("OFFLINE_CLI_REAL_DATA", HERE.parents[1] / "shared" / "real_data")) / name
    if not folder.is_dir():
        raise Missing(f"the recording {name} is not on this machine (OFFLINE_CLI_REAL_DATA says where)")
    return folder


def versions(*names: str) -> str:
    """`numpy 2.4.6, ray 2.60.0` for those that are installed."""
    found = []
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def machine() -> dict[str, str]:
    """What the figures were taken on, when, and how busy it was with other things."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": f"{os.cpu_count()} cores, {models[0] if models else platform.machine()}",
        "load": f"{load:.1f}",
        "busy": "yes" if load > BUSY * (os.cpu_count() or 1) else "",
        "python": platform.python_version(),
        "versions": versions("numpy", "pyarrow", "polars", "torch", "msgpack", "msgpack-numpy", "orjson", "gymnasium"),
    }
