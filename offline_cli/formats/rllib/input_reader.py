"""Objects in the manner of RLlib's `InputReader`, whose `next()` gives SampleBatches, as a source.

`--from python:package.module:CustomInputReader` names a class, or a function as `register_input` takes it; it is called with an
`IOContext`, whose `input_config` holds the paths of the sources as `input_files` and `paths`. Reading ends where `next()`
returns None or raises StopIteration. RLlib's own readers start over at their end: they need `--limit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Final

import numpy as np

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig, BadData, BadEpisode, OfflineCliError
from offline_cli.formats.reader import OpenContext, Reader
from offline_cli.formats.rllib.batch_lines import BatchReader, PolicyRows
from offline_cli.formats.rllib.sample_batch import SampleBatchSource
from offline_cli.formats.source import Source
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects, Tally

FIX: Final = "have next() give batches: columns by name, with one row a step"


@dataclass(frozen=True, slots=True)
class IOContext:
    """What a reader is made with, by RLlib's names."""

    log_dir: str
    config: Mapping[str, Any]
    worker_index: int = 0
    worker: None = None

    @property
    def input_config(self) -> Mapping[str, Any]:
        """The sources, as `input_files` and `paths`; empty for a writer."""
        return dict(self.config.get("input_config", {}))

    @property
    def output_config(self) -> Mapping[str, Any]:
        """The target, as `path`; empty for a reader."""
        return dict(self.config.get("output_config", {}))

    def default_sampler_input(self) -> None:
        """There is no sampler."""


@dataclass(frozen=True, slots=True)
class Maker:
    """A class or function that the user named, which makes objects in the manner of RLlib's.

    Raises BadConfig for one that cannot be called.
    """

    make: Any  # called with an IOContext
    where: str  # the option that names it
    noun: str  # what it makes, in a word
    base: str  # RLlib's class for that
    method: str  # which such an object has
    record: str  # ours, of which it could have been one

    def __post_init__(self) -> None:
        if not callable(self.make):
            fix = f"name a {self.record}, a class with {self.method}(), or a function that makes such an object"
            raise BadConfig(f"it is {type(self.make).__name__}, which makes no {self.noun}", where=self.where, fix=fix)

    def made(self, doing: str, folder: str, config: Mapping[str, Any]) -> Any:
        """An object with the method. Raises BadConfig for one without it, and as `called` does."""
        found = self.called(doing, lambda: self.make(IOContext(folder, config)))
        if not callable(getattr(found, self.method, None)):
            what = f"it makes {type(found).__name__}, which has no {self.method}()"
            raise BadConfig(what, where=self.where, fix=f"derive it from RLlib's {self.base}, or write a {self.record}")
        return found

    def called(self, doing: str, call: Callable[[], Any]) -> Any:
        """What `call`, of code of the user's, returns. Raises BadData for what it raises, but for our own errors."""
        try:
            return call()
        except OfflineCliError:
            raise
        except Exception as error:
            what = f"{doing} raised {error!r}"
            raise BadData(what, where=self.where, fix="call it by itself, in Python") from error


def input_reader(found: Any, name: str) -> Reader:
    """A `Reader` for a maker of objects with `next()`. Raises BadConfig for one that cannot be called."""
    maker = Maker(found, f"--from {name}", "reader", "InputReader", "next", "Reader")

    def open_files(files: Sequence[Location], context: OpenContext) -> Source:
        return InputReaderSource(files, context.location, maker=maker, name=name)

    return Reader(name, f"what {name} reads", open_files)


@dataclass(slots=True)
class InputReaderSource(SampleBatchSource):
    """The batches of an object with `next()`, made anew for each reading: to us what lines of SampleBatch JSON are."""

    format: ClassVar = "input-reader"
    maker: Maker = field(kw_only=True)
    name: str = field(kw_only=True)

    @property
    def size(self) -> int | None:
        """Unknown."""
        return None

    def _lines(self, reader: BatchReader, tally: Tally, rejects: Rejects) -> Iterator[list[PolicyRows] | str]:
        for number, batch in enumerate(self._batches()):
            where = f"{self.name} batch {number}"
            tally.rows_in += 1
            try:
                columns = {policy: _columns(given, where) for policy, given in _policies(batch).items()}
                found = reader.rows(columns, where, 0, Tally())
            except BadData as error:
                rejects.add(error)
                yield where
                continue
            self.done += sum(map(len, found))
            yield found

    def _batches(self) -> Iterator[Any]:
        files = [file.url for file in self.files]
        config = {"input": self.name, "input_config": {"input_files": files, "paths": files}}
        reader = self.maker.made(f"making {self.name}", ".", config)
        for number in count():
            batch = self.maker.called(f"next() number {number} of {self.name}", lambda: _next(reader))
            if batch is None:
                return
            yield batch


def _next(reader: Any) -> Any:
    try:
        return reader.next()
    except StopIteration:
        return None


def _policies(batch: Any) -> Mapping[str | None, Any]:
    """The batches of a MultiAgentBatch, or of a dict as its JSON is, by policy; any other batch by itself."""
    found = getattr(batch, "policy_batches", None)
    if found is None and isinstance(batch, Mapping):
        found = batch.get("policy_batches")
    return found if isinstance(found, Mapping) else {None: batch}


def _columns(batch: Any, where: str) -> dict[str, Any]:
    """The columns of a batch as trees of arrays, infos as a list. Raises BadEpisode."""
    if not isinstance(batch, Mapping):
        raise BadEpisode(f"next() gave {type(batch).__name__}, which has no columns", where=where, fix=FIX)
    columns: dict[str, Any] = {}
    for name, value in dict(batch).items():
        try:
            columns[str(name)] = value if value is None else list(value) if name == Columns.INFOS else _typed(value)
        except (TypeError, ValueError) as error:
            raise BadEpisode(f"column {name} is no array: {error}", where=where, fix=FIX) from error
    return columns


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _typed(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_typed, value))
    array = np.asarray(value)
    if array.dtype.hasobject and all(isinstance(item, str) for item in array.flat):
        array = array.astype(np.str_)
    return array if array.ndim else value
