"""Text files, a walk a line: `ID POSITION STEP POSITION STEP ... POSITION`, where each step is -1 or 1."""

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.reader import NO, SURE, Reader
from offline_cli.formats.source import FileSource, Fragments
from offline_cli.tally import Lost


class Walks(FileSource):
    format = "walks"

    def fragments(self, tally, rejects):
        for file in self.files:
            for number, line in enumerate(file.read_bytes().decode().splitlines(), 1):
                tally.rows_in += 1
                name, *numbers = line.split()
                try:
                    yield Fragments(walk(name, np.array(numbers, np.float32)))
                except ValueError as error:
                    rejects.add(BadData(f"no walk: {error}", where=f"{file.url} line {number}", fix="correct it"), raw=line)
                    rejects.lose_episodes(Lost.UNREADABLE)


def walk(name, numbers):
    positions, moves, ended = numbers[::2], numbers[1::2], np.array([True])
    steps = {"obs": positions, "actions": (moves > 0).astype(np.int64), "rewards": moves.astype(float)}
    return EpisodeBatch(ids=(name,), starts=np.array([0, len(moves)]), terminated=ended, truncated=~ended, **steps)


def sniff(listing):
    return SURE if all(file.name.endswith(".walk") for file in listing.files) else NO


WALKS = Reader("walks", "walks of one number", lambda files, context: Walks(files, context.location), sniff)
