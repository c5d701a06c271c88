"""A reader whose files are read slowly, one episode each, and which divides: for tests that kill what reads them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.reader import NO, Reader
from offline_cli.formats.source import FileSource, Fragments, shares
from offline_cli.tally import Rejects, Tally

PAUSE = 0.04  # seconds for a fragment
FRAGMENTS = 4  # of a file


class SlowSource(FileSource):
    format = "slow"

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        self.done = 0
        for file in self.files:
            number = int(file.read_bytes())
            for part in range(FRAGMENTS):
                time.sleep(PAUSE)
                tally.rows_in += 1
                yield Fragments(_episode(f"{number}-{part}", number * FRAGMENTS + part))
            self.done += file.size()

    def partitions(self, count: int) -> Sequence[SlowSource]:
        return [self.over(part) for part in shares(self.files, count)]


def _episode(name: str, number: int) -> EpisodeBatch:
    steps = 5 + number % 7
    random = np.random.default_rng(number)
    return EpisodeBatch(
        ids=(name,),
        starts=np.array([0, steps]),
        obs=random.normal(size=(steps + 1, 4)).astype(np.float32),
        actions=random.integers(0, 2, steps),
        rewards=np.ones(steps),
        terminated=np.array([True]),
        truncated=np.array([False]),
    )


def written(folder: Path, files: int) -> Path:
    """So many files for it."""
    folder.mkdir()
    for number in range(files):
        (folder / f"{number:04}.slow").write_text(str(number))
    return folder


SLOW = Reader("slow", "episodes that take their time", lambda files, context: SlowSource(files, context.location), lambda _: NO)
