"""How many of our files does loading a training set go through? `python -m benchmarks.files_entered [--names]`.

A file counts where one of its functions is entered, in any thread. What runs while a module is imported does not count, and
neither does making the networks, which happens meanwhile because pieces of a pipeline may use them (`Setup.learner`). The data
is a committed dataset of ours in the `episodes` format, on this machine. Whoever follows a value from disk to a batch has to
open so many files.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
from gymnasium import spaces

import offline_cli
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import Space
from offline_cli.storage.locations import open_location
from offline_cli.training.config import BCConfig
from offline_cli.training.learner import Setup
from offline_cli.training.training_data import load_data

__all__ = ["CASES", "counted", "entered", "made_dataset"]

ROOT: Final = str(Path(offline_cli.__file__).resolve().parent) + "/"
EPISODES, LENGTH = 400, 50
PIPELINE: Final = """kind = "learner"
defaults = true
[[pieces]]
name = "mean_std_filter"
[[pieces]]
name = "frame_stacking"
num_frames = 4
"""
CASES: Final = {
    "in memory": (False, False, 43),
    "streaming": (True, False, 52),
    "in memory, through a pipeline": (False, True, 59),
    "streaming, through a pipeline": (True, True, 67),
}
"""By name: whether the steps are streamed, whether there is a pipeline file, and how many files there may be."""


class counted:  # noqa: N801  reads as what it gives, as in contextlib
    """Within it, calls of our functions are counted by file, in every thread that begins there; a context manager."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._left_out = threading.local()

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
        depth = getattr(self._left_out, "depth", 0)
        if frame.f_code.co_name == "<module>" or frame.f_code is Setup.learner.__code__:
            self._left_out.depth = depth + (1 if event == "call" else -1)
        elif event == "call" and not depth and frame.f_code.co_filename.startswith(ROOT):
            self.calls[frame.f_code.co_filename.removeprefix(ROOT)] += 1


def made_dataset(folder: Path) -> str:
    """A committed dataset of EPISODES x LENGTH steps, observations of 8 float32."""
    rng = np.random.default_rng(0)
    steps = EPISODES * LENGTH
    observation: Space = spaces.Box(-np.inf, np.inf, (8,), np.float32)
    action: Space = spaces.Discrete(4)
    batch = EpisodeBatch(
        ids=tuple(f"{number:032x}" for number in range(EPISODES)),
        starts=np.arange(EPISODES + 1) * LENGTH,
        obs=rng.standard_normal((steps + EPISODES, 8)).astype(np.float32),
        actions=rng.integers(0, 4, steps),
        rewards=np.ones(steps),
        terminated=np.ones(EPISODES, np.bool_),
        truncated=np.zeros(EPISODES, np.bool_),
        observation_space=observation,
        action_space=action,
    )
    given: dict[str, Any] = {"observation_space": observation, "action_space": action, "action_scale": "env"}
    with DatasetWriter(open_location(str(folder)), format="episodes", **given) as writer:
        writer.write(batch)
        writer.commit()
    return str(folder)


def entered(source: str, *, streaming: bool, pipeline: str | None) -> Counter[str]:
    """Calls by file while `source` is loaded to be learned from."""
    config = BCConfig(streaming=streaming, memory_limit=8 << 30 if streaming else None)  # other tests' memory counts, too
    setup = Setup.of(config)
    with contextlib.ExitStack() as held, counted() as calls:
        data = load_data(source, config, setup, pipeline=pipeline, on_progress=lambda _: None)
        held.callback(data.close)
    return calls


@contextlib.contextmanager
def _made() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as temp:
        file = Path(temp) / "pipeline.toml"
        file.write_text(PIPELINE, encoding="utf-8")
        yield made_dataset(Path(temp) / "D"), str(file)


def main() -> None:
    """Print the count of every case; with `--names`, the files and how often each is entered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print the files")
    asked = parser.parse_args()
    with _made() as (source, file):
        for name, (streaming, piped, bound) in CASES.items():
            calls = entered(source, streaming=streaming, pipeline=file if piped else None)
            print(f"{name}: {len(calls)} files entered, at most {bound} allowed")
            for path, times in sorted(calls.items()) if asked.names else ():
                print(f"  {path} {times}")


if __name__ == "__main__":
    main()
