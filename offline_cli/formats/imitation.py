"""imitation's trajectories: a Hugging Face dataset on disk (Arrow streams), a row a trajectory, with T+1 observations.

Columns are `obs`, `acts`, `terminal`, `infos`, and `rews` where there are rewards. Infos are texts of jsonpickle, which makes
objects of whatever class a text names: they are never decoded, and are left out by name unless all are empty. A trajectory
that is not `terminal` was truncated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.arrow_leaves import arrow_schema_of, is_text, record_batches, tree_of, without_leaves
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import ENV_SCALE, LEFT_OUT, Source, SourceInfo
from offline_cli.formats.step_rows import one_number_each
from offline_cli.formats.whole_episodes import EpisodeFiles, Reads
from offline_cli.schema_files import from_json
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
        """See `EpisodeFiles`: those of a record batch at a time; where one of them is bad, one by one."""
        row = 0
        for batch in record_batches(file, held, memory_limit=self.read_options.memory_limit):
            _count_left_out(batch, tally)
            numbers, whole = range(row, row + batch.num_rows), None
            with suppress(BadData):
                whole = self._read(batch, numbers, prefix, file.url, tally) if numbers else None
            if whole is not None:
                yield numbers, partial(EpisodeBatch.concat, [whole])
            for at in range(batch.num_rows) if whole is None else ():
                one = numbers[at : at + 1]
                yield one, partial(self._read, batch.slice(at, 1), one, prefix, file.url, tally)
            row += batch.num_rows

    def _read(self, batch: pa.RecordBatch, numbers: range, prefix: str, url: str, tally: Tally) -> EpisodeBatch:
        """All trajectories of a batch, the rows `numbers` of its file. Raises BadData, naming the first row."""
        where, names = f"{url} row {numbers.start}", batch.schema.names
        (acts, steps), (obs, seen) = (self._values(batch, name, where, tally) for name in (ACTS, OBS))
        rewards, rewarded = self._values(batch, REWS, where, tally) if REWS in names else (np.zeros(steps.sum()), steps)
        if (seen != steps + 1).any() or (rewarded != steps).any():
            what = f"{seen.tolist()[:3]} observations and {rewarded.tolist()[:3]} rewards for {steps.tolist()[:3]} actions"
            raise BadEpisode(what, where=where, fix=FIX)
        terminal = batch[TERMINAL] if TERMINAL in names else pa.nulls(len(numbers))
        if not pa.types.is_boolean(terminal.type) or terminal.null_count:
            raise BadEpisode("terminal is no flag", where=where, fix=FIX)
        terminated = np.asarray(terminal.to_numpy(zero_copy_only=False))
        made = EpisodeBatch(
            ids=tuple(f"{prefix}{number}" for number in numbers),
            starts=np.concatenate([[0], np.cumsum(steps)]),
            obs=obs,
            actions=acts,
            rewards=one_number_each(rewards, "rewards", where=where, fix=FIX).astype(np.float64),
            terminated=terminated,
            truncated=~terminated,
        )
        tally.assume(MISSING_REWARDS, 0 if REWS in names else made.num_steps)
        return made

    def _values(self, batch: pa.RecordBatch, name: str, where: str, tally: Tally) -> tuple[Any, NDArray[np.int64]]:
        """(M, ...) of all trajectories without the parts that are dropped, and (E,) how many each has. Raises BadData."""
        column = batch[name] if name in batch.schema.names else pa.nulls(batch.num_rows)
        if not _is_list(column.type) or column.null_count:
            raise BadEpisode(f"column {name} is no list in each row", where=where, fix=FIX)
        inner = column.flatten()
        for part in inner.type if pa.types.is_struct(inner.type) else ():
            if f"{name}.{part.name}" in self.drop:
                tally.drop_column(f"{name}.{part.name}", LEFT_OUT)
        kept, kind = without_leaves(inner, pa.field(name, inner.type), name, self.drop)
        sizes = np.asarray(pc.list_value_length(column).to_numpy(zero_copy_only=False)).astype(np.int64)
        return tree_of(kept, kind, where=lambda _: where), sizes


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
