"""imitation's trajectories: a Hugging Face dataset on disk (Arrow streams), a row a trajectory, with T+1 observations.

Columns are `obs`, `acts`, `terminal`, `infos`, and `rews` where there are rewards. Infos are texts of jsonpickle, which makes
objects of whatever class a text names: they are never decoded, and are left out by name unless all are empty. A trajectory
that is not `terminal` was truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.action_shapes import choices, one_number_each
from offline_cli.formats.arrow_files import arrow_schema_of, record_batches, without_leaves
from offline_cli.formats.arrow_leaves import tree_of
from offline_cli.formats.dropped_leaves import LEFT_OUT
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, Origins, Source, SourceInfo
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.safe_json import from_json
from offline_cli.storage.locations import Location
from offline_cli.tally import MISSING_REWARDS, Lost, Rejects, Tally

__all__ = ["ImitationSource", "open_imitation"]

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
    states = [file for file in files if file.name == STATE]
    if not states:
        return list(arrow.values()) or list(files)
    try:
        if len(states) > 1 or states[0].size() > MAX_STATE:
            raise ValueError(f"{len(states)} datasets are here" if len(states) > 1 else "too large")
        names = [str(one["filename"]) for one in from_json(states[0].read_bytes())["_data_files"]]
    except (ValueError, TypeError, KeyError) as error:
        fix = "name one dataset, saved by datasets"
        raise BadData(f"no list of data files: {error}", where=states[0].url, fix=fix) from error
    lost = next((name for name in names if name not in arrow), None)
    if lost is not None or not names:
        what = f"the data file {str(lost)[:80]!r} is missing" if names else "no data files"
        raise BadData(what, where=states[0].url, fix="copy the folder again")
    return [arrow[name] for name in dict.fromkeys(names)]


@dataclass(slots=True)
class ImitationSource(FileSource):
    """Arrow streams in the order given."""

    format: ClassVar = "imitation"
    drop: frozenset[str] = field(default=frozenset(), kw_only=True)  # see `OpenContext`

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Whole episodes, those of a record batch at a time; where one of them is bad, one by one."""
        self.done, number, prefix = 0, 0, source_hash(self.files)
        for file in self.files:
            row = 0
            try:
                for batch in record_batches(file, self.scope, memory_limit=self.read_options.memory_limit):
                    tally.rows_in += batch.num_rows
                    _count_left_out(batch, tally)
                    for first, found in self._episodes(batch, file.url, row, tally, rejects):
                        ids = tuple(f"{prefix}-{number + first + at}" for at in range(len(found)))
                        rows = row + first + np.arange(len(ids))
                        yield Fragments(replace(found, ids=ids), Origins((file.url,), np.zeros(len(ids), np.int64), rows))
                    row, number = row + batch.num_rows, number + batch.num_rows
            except BadData as error:
                rejects.add(error)
                rejects.lose_episodes(Lost.UNREADABLE)
            self.done += file.size()

    def _episodes(
        self, batch: pa.RecordBatch, url: str, row: int, tally: Tally, rejects: Rejects
    ) -> Iterator[tuple[int, EpisodeBatch]]:
        """Trajectories of a record batch, which begins at a row of its file, and which of them is the first."""
        try:
            yield 0, self._made(batch, f"{url} row {row}", tally)
            return
        except BadData:
            singles = [batch.slice(at, 1) for at in range(batch.num_rows)]
        for at, single in enumerate(singles):
            try:
                yield at, self._made(single, f"{url} row {row + at}", tally)
            except BadData as error:
                rejects.add(error)
                rejects.lose_episodes(Lost.UNREADABLE)

    def _made(self, batch: pa.RecordBatch, where: str, tally: Tally) -> EpisodeBatch:
        """The episodes, without ids."""
        lengths, has_rewards = _lengths(batch, ACTS, where), REWS in batch.schema.names
        for name, more in ((OBS, 1), (REWS, 0)):
            have = _lengths(batch, name, where) - more if has_rewards or name == OBS else lengths
            if (have != lengths).any():
                at = int(np.argmax(have != lengths))
                what = f"{have[at]} {'observations, less one,' if more else 'rewards'} for {lengths[at]} actions"
                raise BadEpisode(what, where=where, fix=FIX)
        if TERMINAL not in batch.schema.names or batch[TERMINAL].null_count or not pa.types.is_boolean(batch[TERMINAL].type):
            raise BadEpisode("terminal is no flag", where=where, fix=FIX)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rewards = np.asarray(self._values(batch, REWS, where, tally)) if has_rewards else np.zeros(starts[-1])
        terminal = np.asarray(batch[TERMINAL].to_numpy(zero_copy_only=False))
        made = EpisodeBatch(
            ids=("",) * len(lengths),
            starts=starts,
            obs=self._values(batch, OBS, where, tally),
            actions=choices(self._values(batch, ACTS, where, tally)),
            rewards=one_number_each(rewards, "rewards", where=where, fix=FIX).astype(np.float64),
            terminated=terminal,
            truncated=~terminal,
        )
        tally.assume(MISSING_REWARDS, 0 if has_rewards else int(starts[-1]))
        return made

    def _values(self, batch: pa.RecordBatch, name: str, where: str, tally: Tally) -> Any:
        """(M, ...) of all trajectories, without the parts that are dropped."""
        inner = batch[name].flatten()
        for part in inner.type if pa.types.is_struct(inner.type) else ():
            if f"{name}.{part.name}" in self.drop:
                tally.drop_column(f"{name}.{part.name}", LEFT_OUT)
        kept, kind = without_leaves(inner, pa.field(name, inner.type), name, self.drop)
        return tree_of(kept, kind, where=lambda _: where)


def _count_left_out(batch: pa.RecordBatch, tally: Tally) -> None:
    for name in batch.schema.names:
        if name not in (*NEEDED, REWS, INFOS):
            tally.drop_column(name, "no column of imitation's")
        elif name == INFOS and not (_is_list(batch[name].type) and _are_empty(batch[name].flatten())):
            tally.drop_column(name, "texts of jsonpickle, which are never decoded")


def _lengths(batch: pa.RecordBatch, name: str, where: str) -> NDArray[np.int64]:
    column = batch[name] if name in batch.schema.names else pa.nulls(batch.num_rows)
    if not _is_list(column.type) or column.null_count:
        raise BadEpisode(f"column {name} is no list in each row", where=where, fix=FIX)
    return np.asarray(pc.list_value_length(column).to_numpy(zero_copy_only=False)).astype(np.int64)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _are_empty(texts: pa.Array) -> bool:
    kind = texts.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return not len(texts) or (is_text and not texts.null_count and bool(pc.all(pc.equal(texts, pa.scalar("{}", kind))).as_py()))
