"""The lines of many files in groups that are read together; refuses to put lines of two files, or around a loss, into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from offline_cli.formats.file_source import Openable
from offline_cli.formats.sample_batch.files import Line, lines_of
from offline_cli.scopes import Scope
from offline_cli.tally import RejectsAhead

__all__ = ["LineGroup", "grouped"]

TOGETHER_LINES: Final = 4096  # each that cannot be read is an error in memory
TOGETHER_BYTES: Final = 2 << 20  # of lines whose numbers become arrays together; parsed, they can take 30 times as much


@dataclass(slots=True)
class LineGroup:
    """Lines that stand one after the other in a file, and what could not be read right before them."""

    rejects: RejectsAhead = field(default_factory=RejectsAhead)
    lost: list[str] = field(default_factory=list)  # the files of these
    lines: list[Line] = field(default_factory=list)
    nbytes: int = 0  # of the lines
    done: int = 0  # bytes of all files, as they are stored, that have been read with them


def grouped(files: Sequence[Openable], scope: Scope | None = None) -> Iterator[LineGroup]:
    """The lines of all files, in order; what cannot be read is in the group after it, if need be in one without lines.

    `scope` owns the file that is open. Raises StorageError, after the lines before it.
    """
    rejects, group = RejectsAhead(), LineGroup()
    for file in files:
        before, lines = group.done, lines_of(file, rejects, scope)
        while True:
            try:
                line = next(lines, None)
            except Exception:
                yield group
                raise
            is_full = line is not None and (
                group.nbytes + len(line.data) > TOGETHER_BYTES or len(group.lines) == TOGETHER_LINES
            )
            if group.lines and (line is None or is_full or rejects.told):
                yield group
                group = LineGroup(done=group.done)
            if rejects.told:
                group.lost.append(file.url)
                rejects.pass_on(group.rejects)
            if line is None:
                break
            group.lines.append(line)
            group.nbytes += len(line.data)
            group.done = before + line.position
    if group.lost:
        yield group
