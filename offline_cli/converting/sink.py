"""What `convert --to NAME` writes into: all sinks by name, and RLlib's writers as sinks.

* `Sink`, `SinkKind`: the interface, and the record by which a sink is registered (`formats/sink.py`).
* `OURS`, `sink_named`: our dataset in both row formats, foreign formats, sinks of other packages, and a user's own Python file.
* `OutputWriterSink`: objects in the manner of RLlib's `OutputWriter`, whose `write(sample_batch)` takes SampleBatches. `--to
  python:package.module:CustomOutputWriter` names a class, or a function, that is called with an `IOContext`: its
  `output_config` holds `path`, and `log_dir` is `--out`. Each episode is one batch, with RLlib's column names; where ray is
  installed and the writer's module has imported it, a real SampleBatch. Whether such a writer's output is whole is unknown: it
  can be neither resumed nor replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
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
from offline_cli.errors import BadConfig
from offline_cli.formats import registry
from offline_cli.formats.hdf5.d3rlpy import D3RLPY_SINK
from offline_cli.formats.hdf5.d4rl import D4RL_SINK
from offline_cli.formats.hdf5.robomimic import ROBOMIMIC_SINK
from offline_cli.formats.lerobot.sink import LEROBOT_SINK
from offline_cli.formats.minari.sink import MINARI_SINK
from offline_cli.formats.npz.flat import NPZ_SINK
from offline_cli.formats.rllib.input_reader import Make, maker
from offline_cli.formats.sink import OPTIONS, ForeignSink, Sink, SinkContext, SinkKind, Written, refuse_existing
from offline_cli.plugins import READERS, SINKS, named_plugin, plugins
from offline_cli.storage.locations import Location

__all__ = ["OPTIONS", "OURS", "SampleBatch", "Sink", "SinkContext", "SinkKind", "Written", "committed", "known_formats"]
__all__ += ["refuse_existing", "sink_named"]

PACKAGE: Final = "offline-cli"


def _open_dataset(row_format: RowFormat, target: Location, context: SinkContext) -> Sink:
    known = {one.name: getattr(context, one.name) for one in fields(context)}  # the writer's own names
    del known["temp_dir"]
    return DatasetWriter(target, format=row_format, **known)


def _dataset(row_format: RowFormat, words: str, keeps: str) -> SinkKind:
    return SinkKind(row_format, words, partial(_open_dataset, row_format), check_target, OPTIONS, keeps)


STEPS_KEEP: Final = "steps, last observations, infos, extra outputs; not custom data, clocks, ids of multi-agent episodes"
OURS: Final = {
    kind.name: kind
    for kind in (
        _dataset("episodes", "our dataset, a row an episode, as RLlib reads it", "everything"),
        _dataset("columns", "our dataset, a row a step, for any Parquet tool", STEPS_KEEP),
        MINARI_SINK,
        D4RL_SINK,
        ROBOMIMIC_SINK,
        D3RLPY_SINK,
        LEROBOT_SINK,
        NPZ_SINK,
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


def known_formats() -> dict[str, list[dict[str, str]]]:
    """All that `--from` (`readers`) and `--to` (`sinks`) take, ours first: name, words, package, what of an episode it keeps.

    No plug-in is imported, so that the words and `keeps` of other packages are not known.
    """
    found: dict[str, list[dict[str, str]]] = {}
    for role, ours, group in (("readers", registry.OURS, READERS), ("sinks", OURS, SINKS)):
        own = [{"name": name, "words": one.words, "package": PACKAGE, "keeps": one.keeps} for name, one in ours.items()]
        theirs = [(one.name, f"not imported here: see {one.distribution}", one.package, "") for one in plugins(group)]
        found[role] = [*own, *(dict(zip(("name", "words", "package", "keeps"), one, strict=True)) for one in theirs)]
    return found


# ---- RLlib's writers ----


class SampleBatch(dict[str, Any]):
    """Columns by name, a row a step: what RLlib's writers use of its class of this name."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self[Columns.REWARDS])


def output_writer(found: Any, name: str) -> SinkKind:
    """A `SinkKind` for a maker of objects with `write()`. Raises BadConfig for one that cannot be called."""
    make = maker(found, f"--to {name}", "write")
    return SinkKind(name, f"what {name} writes", lambda target, context: OutputWriterSink(target, context, make, name))


class OutputWriterSink(ForeignSink):
    """Hands each episode to an object with `write(batch)`, and closes it where it has a `close`."""

    def __init__(self, target: Location, context: SinkContext, make: Make, name: str) -> None:
        super().__init__(target, context, name)
        self._make = make
        self._writer: Any = None

    def __enter__(self) -> Self:
        config = {"output": self.name, "output_config": {"path": self.target.url}, "output_compress_columns": []}
        self._writer = self._make(self.target.url, config)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        close = getattr(self._writer, "close", None)
        self._writer = None
        if callable(close):
            close()

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""
        for episode in range(len(batch)):
            self._writer.write(_sample_batch(batch, episode))
        self.count(batch)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`: closes the writer; how many files and bytes it wrote is not known."""
        self.__exit__(None, None, None)
        return Written(self.episodes, self.steps, 0, 0)


def _sample_batch(batch: EpisodeBatch, episode: int) -> Any:
    one = batch.select(slice(episode, episode + 1))
    columns = {
        Columns.EPS_ID: np.full(one.num_steps, one.ids[0]),
        Columns.T: np.arange(one.num_steps),
        Columns.OBS: one.acted_obs(view=True),
        Columns.NEXT_OBS: one.next_obs(view=True),
        Columns.ACTIONS: one.actions,
        Columns.REWARDS: one.rewards,
        **dict(zip((Columns.TERMINATEDS, Columns.TRUNCATEDS), one.step_flags(), strict=True)),
        **one.extra,
    }
    if one.infos is not None:
        columns[Columns.INFOS] = np.array([dict(info) for info in one.infos[1:]], dtype=object)
    theirs = sys.modules.get("ray.rllib.policy.sample_batch")
    return SampleBatch(columns) if theirs is None else theirs.SampleBatch(columns)
