"""How many of our files does a reader follow? `python -m benchmarks.files_entered [--names] [CASE...]`.

A file counts where one of its functions is entered, in any thread, while a library call runs; importing modules does not count.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import polars as pl

import offline_cli
from offline_cli.converting.reading import read_episodes

__all__ = ["CASES", "counted"]

ROOT: Final = str(Path(offline_cli.__file__).resolve().parent) + "/"
RECORDING: Final = Path(__file__).resolve().parents[1] / "sample_data" / "rllib_cartpole_expert"


class counted:  # noqa: N801  reads as what it gives, as in contextlib
    """Within it, calls of our functions are counted by file, in every thread that begins there; a context manager."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._importing = threading.local()

    def __enter__(self) -> Counter[str]:
        gc.collect()  # closing what others have left half-read is a call of a file
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self.calls

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        depth = getattr(self._importing, "depth", 0)
        if frame.f_code.co_name == "<module>":
            self._importing.depth = depth + (1 if event == "call" else -1)
        elif event == "call" and not depth and frame.f_code.co_filename.startswith(ROOT):
            self.calls[frame.f_code.co_filename.removeprefix(ROOT)] += 1


def _read(source: Path, **options: Any) -> None:
    with read_episodes(source, **options) as stream:
        assert sum(len(batch) for batch in stream)


def _csv(folder: Path) -> None:
    rows = np.arange(100)
    steps = {"eps_id": rows // 10, "t": rows % 10, "obs": rows / 7, "actions": rows % 2, "rewards": rows / 1.0}
    pl.DataFrame(steps).write_csv(folder / "steps.csv")


def _dataset(folder: Path) -> None:
    offline_cli.record("CartPole-v1", folder / "D", policy="random", episodes=20, num_envs=4)


def _run(folder: Path) -> None:
    _dataset(folder)
    offline_cli.train_bc(folder / "D", folder / "run", updates=2)


CASES: Final[dict[str, tuple[int, Callable[[Path], None], Callable[[Path], Any]]]] = {
    "a CSV file to episodes": (20, _csv, lambda folder: _read(folder / "steps.csv")),
    "a recording of RLlib's to episodes": (18, lambda _: None, lambda _: _read(RECORDING)),
    "a dataset to episodes": (14, _dataset, lambda folder: list(map(len, offline_cli.open_dataset(folder / "D").batches()))),
    "record ENV --policy RUN": (
        35,
        _run,
        lambda folder: offline_cli.record("CartPole-v1", folder / "E", policy=str(folder / "run"), episodes=4, num_envs=2),
    ),
    "train-bc D --env ENV": (
        40,
        _dataset,
        lambda folder: offline_cli.train_bc(folder / "D", folder / "run", env="CartPole-v1", updates=20, eval_episodes=2),
    ),
}
"""By what is followed: how many files there should be at most, what is made before, and the call."""


def main() -> None:
    """Print the count of every case; with `--names`, the files and how often each is entered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="words of the cases; all, where none are given")
    parser.add_argument("--names", action="store_true", help="print the files")
    asked = parser.parse_args()
    for name, (bound, prepare, call) in CASES.items():
        if asked.cases and not any(word in name for word in asked.cases):
            continue
        with tempfile.TemporaryDirectory() as temp:
            prepare(Path(temp))
            with counted() as calls:
                call(Path(temp))
        print(f"{name}: {len(calls)} files entered, at most {bound} wanted")
        for path, times in sorted(calls.items()) if asked.names else ():
            print(f"  {path} {times}")


if __name__ == "__main__":
    main()
