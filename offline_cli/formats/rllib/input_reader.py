"""Objects in the manner of RLlib's `InputReader`, whose `next()` gives SampleBatches, as a source.

`--from python:package.module:CustomInputReader` names a class, or a function as `register_input` takes it; it is called with an
`IOContext`, whose `input_config` holds the paths of the sources as `input_files` and `paths`. Reading ends where `next()`
returns None or raises StopIteration. RLlib's own readers start over at their end: they need `--limit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig, BadData, BadEpisode
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


Make = Callable[[str, Mapping[str, Any]], Any]  # of a folder, and RLlib's config


def maker(found: Any, where: str, method: str) -> Make:
    """What makes objects with `method` by a class or function that the user named in the option `where`.

    Raises BadConfig for an object that cannot be called, and where it makes one without `method`.
    """
    fix = f"name a class with {method}(), as RLlib's, or a function that makes such an object"
    if not callable(found):
        raise BadConfig(f"it is {type(found).__name__}, and makes nothing with {method}()", where=where, fix=fix)

    def made(folder: str, config: Mapping[str, Any]) -> Any:
        one = found(IOContext(folder, config))
        if not callable(getattr(one, method, None)):
            raise BadConfig(f"it makes {type(one).__name__}, which has no {method}()", where=where, fix=fix)
        return one

    return made


def input_reader(found: Any, name: str) -> Reader:
    """A `Reader` for a maker of objects with `next()`. Raises BadConfig for one that cannot be called."""
    make = maker(found, f"--from {name}", "next")

    def open_files(files: Sequence[Location], context: OpenContext) -> Source:
        return InputReaderSource(files, context.location, make=make, name=name)

    return Reader(name, f"what {name} reads", open_files)


@dataclass(slots=True)
class InputReaderSource(SampleBatchSource):
    """The batches of an object with `next()`, made anew for each reading: to us what lines of SampleBatch JSON are."""

    format: ClassVar = "input-reader"
    make: Make = field(kw_only=True)
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
        reader = self.make(".", {"input": self.name, "input_config": {"input_files": files, "paths": files}})
        with suppress(StopIteration):
            while (batch := reader.next()) is not None:
                yield batch


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
