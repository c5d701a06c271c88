"""Objects with the interface of RLlib's `InputReader`, whose `next()` returns SampleBatches, as a source.

`--from python:package.module:CustomInputReader` names a class, or a function as for `register_input`. It is called with an
`IOContext`, whose `input_config` has the paths of the sources as `input_files` and `paths`. Reading ends when `next()` returns
None or raises StopIteration. RLlib's own readers repeat endlessly: they need `--limit`.
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

FIX: Final = "return batches from next(): columns by name, with one row per step"


@dataclass(frozen=True, slots=True)
class IOContext:
    """The argument for creating a reader, with RLlib's names."""

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
        """Returns None: there is no sampler."""


Make = Callable[[str, Mapping[str, Any]], Any]  # called with a folder and RLlib's config


def maker(found: Any, where: str, method: str) -> Make:
    """A factory of objects with `method`, from a class or function that the user named in the option `where`.

    Raises BadConfig if it cannot be called, and the factory does if the object lacks `method`.
    """
    fix = f"name a class with {method}(), like RLlib's, or a function that returns such an object"
    if not callable(found):
        raise BadConfig(
            f"{type(found).__name__} is not callable, so it cannot create an object with {method}()", where=where, fix=fix
        )

    def made(folder: str, config: Mapping[str, Any]) -> Any:
        one = found(IOContext(folder, config))
        if not callable(getattr(one, method, None)):
            raise BadConfig(f"the object is a {type(one).__name__}, which has no {method}()", where=where, fix=fix)
        return one

    return made


def input_reader(found: Any, name: str) -> Reader:
    """A `Reader` for a class or function that creates objects with `next()`. Raises BadConfig if it cannot be called."""
    make = maker(found, f"--from {name}", "next")

    def open_files(files: Sequence[Location], context: OpenContext) -> Source:
        return InputReaderSource(files, context.location, make=make, name=name)

    return Reader(name, f"what {name} reads", open_files)


@dataclass(slots=True)
class InputReaderSource(SampleBatchSource):
    """Batches from an object with `next()`, created anew for each reading; handled like lines of SampleBatch JSON."""

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
    """Batches by policy, from a MultiAgentBatch or a dict like its JSON; any other batch has the policy None."""
    found = getattr(batch, "policy_batches", None)
    if found is None and isinstance(batch, Mapping):
        found = batch.get("policy_batches")
    return found if isinstance(found, Mapping) else {None: batch}


def _columns(batch: Any, where: str) -> dict[str, Any]:
    """Columns of a batch: trees of arrays, and infos as a list. Raises BadEpisode."""
    if not isinstance(batch, Mapping):
        raise BadEpisode(f"next() returned {type(batch).__name__}, which has no columns", where=where, fix=FIX)
    columns: dict[str, Any] = {}
    for name, value in dict(batch).items():
        try:
            columns[str(name)] = value if value is None else list(value) if name == Columns.INFOS else _typed(value)
        except (TypeError, ValueError) as error:
            raise BadEpisode(f"column {name} is not an array: {error}", where=where, fix=FIX) from error
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
