"""Writes one `.book` file, which is there once it is whole."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from gymnasium import spaces

from offline_cli.converting.sink import SinkContext, SinkKind, Written
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import UnsupportedSpace
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile
from offline_cli.tally import Reject

NAME = "log.book"


class BookSink:
    """A folder with one book. Raises UnsupportedSpace for what has no place in a book."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        self._target, self._context = target, context
        self._episodes = self._steps = 0
        self._file: StagedFile | None = None

    @property
    def ids_written(self) -> frozenset[str]:
        """None: a book is written in one go."""
        return frozenset()

    def __enter__(self) -> Self:
        obs, action = self._context.observation_space, self._context.action_space
        if not isinstance(obs, spaces.Box) or len(obs.shape) != 1 or not isinstance(action, spaces.Discrete) or action.start:
            fix = "--to episodes takes any space"
            raise UnsupportedSpace("books hold rows of numbers and Discrete actions", where=self._target.url, fix=fix)
        self._target.make_folder()
        self._file = StagedFile(self._target.join(NAME), folder=self._target)
        self._file.write(f"LOGBOOK 1 obs={obs.shape[0]} actions={action.n}\n".encode())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.discard()  # nothing, where it was committed

    def write(self, batch: EpisodeBatch) -> None:
        """A line for each step."""
        assert self._file is not None
        for number, name in enumerate(batch.ids):
            steps = slice(int(batch.starts[number]), int(batch.starts[number + 1]))
            obs = batch.obs[steps.start + number : steps.stop + number + 1].astype(float).tolist()
            acted = zip(obs, batch.actions[steps].tolist(), batch.rewards[steps].tolist(), strict=False)
            lines = [f"{_row(seen)} > {action} > {reward!r}" for seen, action, reward in acted]
            end = "terminated" if batch.terminated[number] else "truncated"
            self._file.write("\n".join([f"episode {name}", *lines, f"end {end} {_row(obs[-1])}\n"]).encode())
        self._episodes, self._steps = self._episodes + len(batch), self._steps + batch.num_steps
        self._context.tally.assume("book-without-extra-columns", int(bool(batch.extra)))

    def rehearse(self, batch: EpisodeBatch) -> None:
        """Any batch of these spaces can be written."""

    def quarantine(self, rejects: list[Reject]) -> None:
        """Beside the book, as comments of one line each."""
        text = "".join(f"# {one.where}: {one.reason}\n" for one in rejects)
        rejects.clear()
        file = StagedFile(self._target.join("rejected.txt"), folder=self._target)
        file.write(text.encode())
        file.commit()

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """Put the book in its place."""
        assert self._file is not None
        self._file.commit()
        return Written(self._episodes, self._steps, 1, self._file.bytes)


def _row(values: list[Any]) -> str:
    return " ".join(map(repr, values))


SINK = SinkKind("log-book", "log books", BookSink, takes={"overwrite"})
