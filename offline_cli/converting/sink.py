"""What `convert --to NAME` writes into: all sinks by name, and RLlib's writers as sinks.

* `Sink`, `SinkKind`: the interface, and the record by which a sink is registered (`formats/sink.py`).
* `OURS`, `sink_named`: our dataset in both row formats, sinks of other packages, and those of a user's own Python file.
* `OutputWriterSink`: objects in the manner of RLlib's `OutputWriter`, whose `write(sample_batch)` takes SampleBatches. `--to
  python:package.module:CustomOutputWriter` names a class, or a function, that is called with an `IOContext`: its
  `output_config` holds `path`, and `log_dir` is `--out`. Each episode is one batch, with RLlib's column names; where ray is
  installed and the writer's module has imported it, a real SampleBatch. Whether such a writer's output is whole is unknown: it
  can be neither resumed nor replaced.
* `known_formats`: what `convert --list-formats` lists: all that `--from` and `--to` take. It imports no plug-in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from offline_cli.choices import RowFormat
from offline_cli.columns import Columns
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.target_folder import check_target
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, UsageError
from offline_cli.formats import registry
from offline_cli.formats.hdf5.d3rlpy import D3RLPY_SINK
from offline_cli.formats.hdf5.d4rl import D4RL_SINK
from offline_cli.formats.hdf5.robomimic import ROBOMIMIC_SINK
from offline_cli.formats.lerobot.sink import LEROBOT_SINK
from offline_cli.formats.minari.sink import MINARI_SINK
from offline_cli.formats.npz.flat import NPZ_SINK
from offline_cli.formats.npz.ogbench import OGBENCH_SINK
from offline_cli.formats.reader import Reader
from offline_cli.formats.rllib.input_reader import Maker
from offline_cli.formats.sink import OPTIONS, ForeignSink, Sink, SinkContext, SinkKind, Written, refuse_existing
from offline_cli.plugins import READERS, SINKS, named_plugin, plugins
from offline_cli.storage.locations import Location
from offline_cli.trees import map_leaves

__all__ = [
    "OPTIONS",
    "OURS",
    "Format",
    "FormatList",
    "SampleBatch",
    "Sink",
    "SinkContext",
    "SinkKind",
    "Written",
    "committed",
    "known_formats",
    "refuse_existing",
    "sink_named",
]

PACKAGE: Final = "offline-cli"


def _dataset(row_format: RowFormat) -> Callable[[Location, SinkContext], Sink]:
    """Opens a dataset of ours."""

    def opened(target: Location, context: SinkContext) -> Sink:
        known = {one.name: getattr(context, one.name) for one in fields(context)}  # the writer's own names
        del known["temp_dir"]
        return DatasetWriter(target, format=row_format, **known)

    return opened


OURS: Final = {
    kind.name: kind
    for kind in (
        SinkKind(
            "episodes",
            "our dataset, a row an episode, as RLlib reads it",
            _dataset("episodes"),
            check_target,
            OPTIONS,
            "everything",
        ),
        SinkKind(
            "columns",
            "our dataset, a row a step, for any Parquet tool",
            _dataset("columns"),
            check_target,
            OPTIONS,
            "steps, last observations, infos, extra outputs; not custom data, clocks, ids of multi-agent episodes",
        ),
        MINARI_SINK,
        D4RL_SINK,
        ROBOMIMIC_SINK,
        D3RLPY_SINK,
        LEROBOT_SINK,
        NPZ_SINK,
        OGBENCH_SINK,
    )
}


def sink_named(name: str) -> SinkKind:
    """The sink that `--to` names. Raises as `named_plugin` does."""
    return named_plugin(SINKS, name, OURS, SinkKind, option="--to", made=output_writer)


def committed(sink: Sink, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
    """What the sink has committed. Raises BadConfig where it does not say so, and what its `commit` raises."""
    written: Any = sink.commit(assumptions=assumptions, episodes_lost=episodes_lost)
    if isinstance(written, Manifest):
        counts, nbytes = written.counts, sum(shard.bytes for shard in written.shards)
        return Written(counts.episodes, counts.steps, len(written.shards), nbytes)
    if not isinstance(written, Written):
        what = f"commit() of the sink {type(sink).__name__} returned {type(written).__name__}, not a Written"
        raise BadConfig(what, where=type(sink).__module__, fix="return Written(episodes, steps, files, bytes)")
    return written


@dataclass(frozen=True, slots=True)
class Format:
    """One name."""

    name: str
    words: str  # of a plug-in, the package to look in: its own words would have to be imported
    package: str  # the distribution that has it
    keeps: str  # what of an episode it holds; of a plug-in empty, as `words`


@dataclass(frozen=True, slots=True)
class FormatList:
    """All names, ours first."""

    readers: tuple[Format, ...]
    sinks: tuple[Format, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def known_formats() -> FormatList:
    """Those of this package, and of all that are installed."""
    return FormatList(_formats(registry.OURS, READERS), _formats(OURS, SINKS))


def _formats(ours: Mapping[str, Reader] | Mapping[str, SinkKind], group: str) -> tuple[Format, ...]:
    return (
        *(Format(name, one.words, PACKAGE, one.keeps) for name, one in ours.items()),
        *(Format(one.name, f"not imported here: see {one.distribution}", one.package, "") for one in plugins(group)),
    )


# ---- RLlib's writers ----


class SampleBatch(dict[str, Any]):
    """Columns by name, a row a step: what RLlib's writers use of its class of this name."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self[Columns.REWARDS])


def output_writer(found: Any, name: str) -> SinkKind:
    """A `SinkKind` for a maker of objects with `write()`. Raises BadConfig for one that cannot be called."""
    maker = Maker(found, f"--to {name}", "writer", "OutputWriter", "write", "SinkKind")
    return SinkKind(
        name, f"what {name} writes", lambda target, context: OutputWriterSink(target, context, maker, name), _refuse_resuming
    )


def _refuse_resuming(target: Location, *, overwrite: bool, resume: bool) -> None:
    if overwrite or resume:
        what = f"{'--overwrite' if overwrite else '--resume'} with a writer that does not report what it has written"
        raise UsageError(what, where=target.url, fix="leave it out, and give an --out that is empty")
    refuse_existing(target, overwrite=False, resume=False)


class OutputWriterSink(ForeignSink):
    """Hands each episode to an object with `write(batch)`, and closes it where it has a `close`."""

    def __init__(self, target: Location, context: SinkContext, maker: Maker, name: str) -> None:
        super().__init__(target, context, name)
        self._maker = maker
        self._writer: Any = None

    def __enter__(self) -> Self:
        config = {"output": self.name, "output_config": {"path": self.target.url}, "output_compress_columns": []}
        self._writer = self._maker.made(f"{self.name}: making it", self.target.url, config)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        close = getattr(self._writer, "close", None)
        self._writer = None
        if callable(close):
            self._maker.called(f"{self.name}: close()", close)

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""
        for episode in range(len(batch)):
            write = partial(self._writer.write, _columns(batch, episode))
            self._maker.called(f"{self.name}: write() of episode {batch.ids[episode]}", write)
        self.count(batch)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`: closes the writer; how many files and bytes it wrote is not known."""
        self.__exit__(None, None, None)
        return Written(self.episodes, self.steps, 0, 0)


def _columns(batch: EpisodeBatch, episode: int) -> Any:
    """One episode as a SampleBatch."""
    rows = slice(int(batch.starts[episode]), int(batch.starts[episode + 1]))
    seen = slice(int(batch.obs_starts[episode]), int(batch.obs_starts[episode + 1]) - 1)
    after = slice(seen.start + 1, seen.stop + 1)
    steps = rows.stop - rows.start
    ends = np.arange(1, steps + 1) == steps
    columns = {
        Columns.EPS_ID: np.full(steps, batch.ids[episode]),
        Columns.T: np.arange(steps),
        Columns.OBS: map_leaves(lambda leaf: leaf[seen], batch.obs),
        Columns.NEXT_OBS: map_leaves(lambda leaf: leaf[after], batch.obs),
        Columns.ACTIONS: map_leaves(lambda leaf: leaf[rows], batch.actions),
        Columns.REWARDS: batch.rewards[rows],
        Columns.TERMINATEDS: ends & bool(batch.terminated[episode]),
        Columns.TRUNCATEDS: ends & bool(batch.truncated[episode]),
        **{name: map_leaves(lambda leaf: leaf[rows], tree) for name, tree in batch.extra.items()},
    }
    if batch.infos is not None:
        columns[Columns.INFOS] = np.array([dict(info) for info in batch.infos[after]], dtype=object)
    theirs = sys.modules.get("ray.rllib.policy.sample_batch")
    return SampleBatch(columns) if theirs is None else theirs.SampleBatch(columns)
