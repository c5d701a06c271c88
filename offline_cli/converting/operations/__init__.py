"""Operations on datasets: a selection of whole episodes from any sources, and one writer for each target.

`Operation` is one call, with its sources and options. Datasets of ours that agree in what they are go row by row: nothing is
decoded (`survey.py`), and figures of columns are left out of the manifest. Other sources are read as `convert` reads them.
Commits, `--resume`, limits of memory and refusals are those of `convert` in both.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.choices import COMPRESSION, ROW_FORMAT
from offline_cli.converting.convert import assumptions_of, interrupted, listed, not_written, provenance_of
from offline_cli.converting.reading import EpisodeStream, Extras, read_opened
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Environment, Manifest
from offline_cli.datasets.target_folder import check_apart, check_target
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.engines.engine import EngineSpec
from offline_cli.environments import spaces_of_env
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.formats.opening import OwnSource, open_sources
from offline_cli.formats.source import Source
from offline_cli.formats.tables.source import TableOptions
from offline_cli.progress import OnProgress
from offline_cli.source_code import content_hash_of
from offline_cli.storage.locations import Location, Sources, expand, open_location
from offline_cli.tally import OnError

__all__ = ["Operation", "OperationResult", "Share"]

Share = Callable[[EpisodeBatch], NDArray[np.int64]]
"""(E,) the number of the target that each episode of a batch goes to; -1: none."""


@dataclass(frozen=True, slots=True)
class OperationResult:
    """What an operation read and wrote."""

    out: str
    format: str  # "episodes" | "columns"
    episodes: int
    steps: int
    dropped: int  # episodes of the sources that were not chosen
    shards: int
    duplicates_dropped: int
    episodes_lost: int | None  # of the sources, and not read, as `convert` counts them; None: unknown for a source
    assumptions: Mapping[str, int]  # by kind
    action_scale: str
    dry_run: bool  # nothing was written
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}


@dataclass(slots=True)
class Operation:
    """One call of an operation. Its sources are open and not yet read; they can be read several times, one after the other."""

    name: str  # of the command
    places: list[Location]
    target: Location
    options: Mapping[str, Any]  # those of `OperationOptions`, and its own
    tables: TableOptions
    sources: list[Source]
    command: Sequence[str]
    on_progress: OnProgress
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def begun(
        cls,
        name: str,
        sources: Sources,
        out: str | os.PathLike[str] | Location,
        *,
        options: Mapping[str, Any],
        command: Sequence[str],
        on_progress: OnProgress,
    ) -> Self:
        """Open the sources. Raises UsageError for a target in or at a source, and what `open_sources` raises."""
        sources = sources if isinstance(sources, (str, os.PathLike, Location)) else list(sources)
        tables, storage_options = TableOptions.of(options), options["storage_options"]
        target = open_location(out, storage_options, beside=sources)
        places = expand(sources, storage_options, beside=out)
        check_apart(places, target)
        if any(place.fs == target.fs and place.path.rstrip("/") == target.path.rstrip("/") for place in places):
            raise UsageError("the output is one of the sources", where=target.url, fix="give another --out")
        opened = open_sources(places, from_=options["from_"], tables=tables, storage_options=storage_options)
        return cls(name, places, target, options, tables, opened, command, on_progress)

    @property
    def where(self) -> str:
        """The sources, for messages."""
        return ", ".join(place.url for place in self.places)

    @property
    def datasets(self) -> list[Dataset]:
        """Those of the sources that are datasets of ours."""
        return [source.dataset for source in self.sources if isinstance(source, OwnSource)]

    @property
    def all_own(self) -> bool:
        """Whether all sources are datasets of ours."""
        return len(self.datasets) == len(self.sources)

    @property
    def format(self) -> str:
        """The row format to write: the one that was asked for, else that of all sources, else `episodes`."""
        return self._as_sources("format", ROW_FORMAT)

    @property
    def compression(self) -> str:
        """That of the shards, in the same way."""
        return self._as_sources("compression", COMPRESSION)

    def _as_sources(self, name: str, default: str) -> str:
        found = {getattr(one.manifest, name) for one in self.datasets}
        return self.options[name] or (found.pop() if self.all_own and len(found) == 1 else default)

    def check_target(self, place: Location | None = None) -> None:
        """Raise, before anything is read, what beginning to write to `place` (the target) would raise."""
        how = {name: self.options[name] for name in ("overwrite", "resume", "force_unlock")}
        check_target(self.target if place is None else place, **how)

    # ---- reading ----

    def stream(
        self, sources: Sequence[Source] | None = None, *, only_looking: bool = False, extras: Extras = None
    ) -> EpisodeStream:
        """Whole episodes of `sources`, by default all; one stream at a time. Raises as `read_episodes` does.

        `only_looking`: no row that is set aside has to be kept. `extras`: as in `read_opened`.
        """
        options, env = self.options, AskedEnvironment.of(self.options)
        spec = None if env is None else env.among((source.info.location, source.info.environment) for source in self.sources)
        on_error = OnError(options["on_error"])
        return read_opened(
            self.sources if sources is None else sources,
            on_error=OnError.SKIP if only_looking and on_error is OnError.QUARANTINE else on_error,
            env=spec,
            env_spaces=None if spec is None else spaces_of_env(spec),
            action_scale=options["action_scale"],
            workers=options["workers"],
            memory_limit=self.tables.memory_limit,
            episode_limit=EpisodeLimit.within(self.tables.memory_limit),
            extras=extras,
            engine=EngineSpec.of(options),
            temp_dir=self.tables.temp_dir,
            on_progress=self.on_progress,
        )

    # ---- writing ----

    def identity(self, **chosen: Any) -> dict[str, str]:
        """What the content follows from, by name; `chosen`: what decides it besides the sources and how they are read.

        Datasets count with their shards' hashes: what is resumed must not be half of one source and half of a later one.
        """
        options = self.options
        read_as = [options[name] for name in ("from_", "on_error", "env", "env_kwargs", "wrappers", "action_scale")]
        known = {
            "the command": self.name,
            "a source": listed(self.places),
            "the content of a source": [(one.path, one.sha256) for found in self.datasets for one in found.manifest.shards],
            "an option of reading": read_as,
            "the mapping": self.tables.identity(options["storage_options"]),
            "the choice of episodes": chosen,
        }
        return {name: content_hash_of(json.dumps(value, sort_keys=True)) for name, value in known.items()}

    def writer(
        self,
        stream: EpisodeStream,
        target: Location,
        *,
        identity: Mapping[str, Any],
        provenance: Mapping[str, Any],
        decoded: bool = True,
    ) -> DatasetWriter:
        """The writer of one target, which gets what is known of `stream`. `provenance`: what `convert` does not write.

        `decoded`: False where rows are moved.
        """
        options = self.options
        return DatasetWriter(
            target,
            format=self.format,  # type: ignore[arg-type]
            observation_space=stream.observation_space,
            action_space=stream.action_space,
            action_scale=stream.action_scale,
            environment=Environment.of(stream.environment),
            meanings=stream.meanings,
            spaces_inferred=stream.spaces_inferred,
            provenance={**provenance_of(self.places, stream, self.command), **provenance},
            compression=self.compression,
            max_rows_per_file=options["max_rows_per_file"],
            max_bytes_per_file=options["max_bytes_per_file"],
            overwrite=options["overwrite"],
            resume=options["resume"],
            tally=stream.tally,
            identity=identity,
            check_ids=False,  # reading has done so
            decoded=decoded,
        )

    @contextmanager
    def written(self, stream: EpisodeStream, writers: Sequence[DatasetWriter]) -> Iterator[None]:
        """Within it, `writers` write what `stream`, or its rows, give. Raises Interrupted for Ctrl-C."""
        try:
            with stream, ExitStack() as stack:
                for writer in writers:
                    stack.enter_context(writer)
                yield
        except KeyboardInterrupt as interrupt:
            raise interrupted(writers[0].location, is_ours=True) from interrupt

    def copy(self, stream: EpisodeStream, writers: Sequence[DatasetWriter], share: Share | None = None) -> list[Manifest]:
        """Write each episode of `stream` by the writer that `share` says, by default the first; then commit them in order.

        Rows that are set aside go to the first. Raises what reading and writing raise, and Interrupted.
        """
        with self.written(stream, writers):
            stream.set_aside_to(writers[0].quarantine)
            for batch in stream:
                goes_to = np.zeros(len(batch), np.int64) if share is None else share(batch)
                for number, writer in enumerate(writers):
                    mine = (goes_to == number) & not_written(batch, writer)
                    if mine.all():
                        writer.write(batch)
                    elif mine.any():
                        writer.write(batch.select(np.flatnonzero(mine)))
            stream.rejects.hand_on()
            return self.committed(stream, writers)

    def committed(self, stream: EpisodeStream, writers: Sequence[DatasetWriter]) -> list[Manifest]:
        """The manifests of the writers, in their order."""
        counted, lost = assumptions_of(stream), stream.episodes_lost
        return [writer.commit(assumptions=counted, episodes_lost=lost) for writer in writers]

    def figures(self, stream: EpisodeStream, written: Sequence[Manifest], **counts: Any) -> dict[str, Any]:
        """The fields of `OperationResult`, with `counts` among them, once `stream` is read as far as it will be."""
        duplicates = stream.tally.duplicates_dropped
        return {
            "out": self.target.url,
            "format": self.format,
            "episodes": sum(manifest.counts.episodes for manifest in written),
            "steps": sum(manifest.counts.steps for manifest in written),
            "shards": sum(len(manifest.shards) for manifest in written),
            "dropped": duplicates,
            "duplicates_dropped": duplicates,
            "episodes_lost": stream.episodes_lost,
            "assumptions": dict(assumptions_of(stream) if written else stream.tally.assumptions),
            "action_scale": stream.action_scale,
            "dry_run": self.options["dry_run"],
            "seconds": time.monotonic() - self.started,
            **counts,
        }
