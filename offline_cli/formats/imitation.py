"""imitation's trajectories: a Hugging Face dataset on disk (Arrow streams), a row a trajectory, with T+1 observations.

Columns are `obs`, `acts`, `terminal`, `infos`, and `rews` where there are rewards. Infos are texts of jsonpickle, which makes
objects of whatever class a text names: they are never decoded, and are left out by name unless all are empty. A trajectory
that is not `terminal` was truncated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.arrow_files import arrow_schema_of, record_batches, without_leaves
from offline_cli.formats.arrow_leaves import is_text, tree_of
from offline_cli.formats.dropped_leaves import LEFT_OUT
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import ENV_SCALE, Source, SourceInfo
from offline_cli.formats.whole_episodes import EpisodeFiles, Reads, whole_episode
from offline_cli.safe_json import from_json
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location
from offline_cli.tally import MISSING_REWARDS, Tally

OBS, ACTS, TERMINAL, REWS, INFOS = "obs", "acts", "terminal", "rews", "infos"
NEEDED: Final = (OBS, ACTS, TERMINAL)
STATE: Final = "state.json"
MAX_STATE: Final = 16 << 20  # bytes
FIX: Final = "save it again with imitation.data.serialize.save, or --on-error skip"


def open_imitation(files: Sequence[Location], context: OpenContext) -> Source:
    """Raises BadData where a file that `state.json` names is missing, or the columns are others."""
    arrow = _data_files(files)
    lacking = [name for name in NEEDED if name not in arrow_schema_of(arrow[0]).names]
    if lacking:
        fix = "save trajectories with imitation.data.serialize.save, or read a table of steps with --from table --mapping"
        raise BadData(f"no column {' or '.join(lacking)}: these are no trajectories", where=arrow[0].url, fix=fix)
    declared = SourceInfo(format=ImitationSource.format, location=context.location, action_scale=ENV_SCALE)
    return ImitationSource(arrow, context.location, declared, drop=context.drop)


def _data_files(files: Sequence[Location]) -> list[Location]:
    """Those that `state.json` lists, in its order; without it all Arrow files. Raises BadData."""
    arrow = {file.name: file for file in files if file.name.endswith(".arrow")}
    state = next((file for file in files if file.name == STATE), None)
    if state is None:
        return list(arrow.values()) or list(files)
    try:
        if state.size() > MAX_STATE:
            raise ValueError("too large")
        names = [str(one["filename"]) for one in from_json(state.read_bytes())["_data_files"]]
        return [arrow[name] for name in dict.fromkeys(names)] or [arrow["data files"]]
    except (ValueError, TypeError, KeyError) as error:
        what = f"its list of data files is none, or one of them is missing: {error}"
        raise BadData(what, where=state.url, fix="copy the folder of one dataset again") from error


@dataclass(slots=True)
class ImitationSource(EpisodeFiles):
    """Arrow streams of trajectories."""

    format: ClassVar = "imitation"

    def episodes(self, file: Location, prefix: str, held: Scope, tally: Tally) -> Reads:
        """See `EpisodeFiles`."""
        row = 0
        for batch in record_batches(file, held, memory_limit=self.read_options.memory_limit):
            _count_left_out(batch, tally)
            for at in range(batch.num_rows):
                place = f"{file.url} row {row + at}"
                yield [row + at], partial(self._episode, batch.slice(at, 1), f"{prefix}{row + at}", place, tally)
            row += batch.num_rows

    def _episode(self, row: pa.RecordBatch, name: str, where: str, tally: Tally) -> EpisodeBatch:
        terminal = row[TERMINAL] if TERMINAL in row.schema.names else pa.nulls(1)
        if not pa.types.is_boolean(terminal.type) or terminal.null_count:
            raise BadEpisode("terminal is no flag", where=where, fix=FIX)
        acts, has_rewards = self._values(row, ACTS, where, tally), REWS in row.schema.names
        steps = len(_cell(row, ACTS, where))
        made = whole_episode(
            name,
            where,
            obs=self._values(row, OBS, where, tally),
            actions=acts,
            rewards=self._values(row, REWS, where, tally) if has_rewards else np.zeros(steps),
            terminated=terminal[0].as_py(),
            truncated=not terminal[0].as_py(),
        )
        tally.assume(MISSING_REWARDS, 0 if has_rewards else steps)
        return made

    def _values(self, row: pa.RecordBatch, name: str, where: str, tally: Tally) -> Any:
        """(T, ...) of a trajectory, without the parts that are dropped."""
        inner = _cell(row, name, where)
        for part in inner.type if pa.types.is_struct(inner.type) else ():
            if f"{name}.{part.name}" in self.drop:
                tally.drop_column(f"{name}.{part.name}", LEFT_OUT)
        kept, kind = without_leaves(inner, pa.field(name, inner.type), name, self.drop)
        return tree_of(kept, kind, where=lambda _: where)


def _cell(row: pa.RecordBatch, name: str, where: str) -> pa.Array:
    """The list in a column of one row. Raises BadEpisode."""
    column = row[name] if name in row.schema.names else pa.nulls(1)
    if not _is_list(column.type) or column.null_count:
        raise BadEpisode(f"column {name} is no list in each row", where=where, fix=FIX)
    return column.flatten()


def _count_left_out(batch: pa.RecordBatch, tally: Tally) -> None:
    for name in batch.schema.names:
        if name not in (*NEEDED, REWS, INFOS):
            tally.drop_column(name, "no column of imitation's")
        elif name == INFOS and not (_is_list(batch[name].type) and _are_empty(batch[name].flatten())):
            tally.drop_column(name, "texts of jsonpickle, which are never decoded")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _are_empty(texts: pa.Array) -> bool:
    return not len(texts) or (is_text(texts.type) and set(texts.unique().to_pylist()) == {"{}"})
