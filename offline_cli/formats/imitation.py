"""imitation's trajectories: a Hugging Face dataset on disk (Arrow streams), a row a trajectory, with T+1 observations.

Columns are `obs`, `acts`, `terminal`, `infos`, and `rews` where there are rewards. Infos are texts of jsonpickle, which makes
objects of whatever class a text names: they are never decoded, and are left out by name unless all are empty. A trajectory
that is not `terminal` was truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.action_shapes import choices, one_number_each
from offline_cli.formats.arrow_files import arrow_schema_of, record_batches, without_leaves
from offline_cli.formats.arrow_leaves import is_text, tree_of
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
    state = next((file for file in files if file.name == STATE), None)
    if state is None:
        return list(arrow.values()) or list(files)
    try:
        if state.size() > MAX_STATE:
            raise ValueError("too large")
        names = [str(one["filename"]) for one in from_json(state.read_bytes())["_data_files"]]
        return [arrow[name] for name in dict.fromkeys(names)] or [arrow["data files"]]
    except (ValueError, TypeError, KeyError) as error:
        what, fix = (
            f"its list of data files is none, or one of them is missing: {error}",
            "copy the folder of one dataset again",
        )
        raise BadData(what, where=state.url, fix=fix) from error


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
                    for at, found in self._episodes(batch, f"{prefix}-", number, (file.url, row), tally, rejects):
                        rows = row + at + np.arange(len(found))
                        yield Fragments(found, Origins((file.url,), np.zeros(len(found), np.int64), rows))
                    row, number = row + batch.num_rows, number + batch.num_rows
            except BadData as error:
                rejects.add(error)
                rejects.lose_episodes(Lost.UNREADABLE)
            self.done += file.size()

    def _episodes(
        self, batch: pa.RecordBatch, prefix: str, number: int, place: tuple[str, int], tally: Tally, rejects: Rejects
    ) -> Iterator[tuple[int, EpisodeBatch]]:
        """Trajectories of a record batch, the first of which has a number and stands at a row; and which is their first."""
        url, row = place
        try:
            made = self._made(batch, prefix, number, f"{url} row {row}", tally)
        except BadData as error:
            if batch.num_rows == 1:
                rejects.add(error)
                rejects.lose_episodes(Lost.UNREADABLE)
            for at in range(batch.num_rows) if batch.num_rows > 1 else ():
                alone = self._episodes(batch[at : at + 1], prefix, number + at, (url, row + at), tally, rejects)
                yield from ((at, one) for _, one in alone)
            return
        yield 0, made

    def _made(self, batch: pa.RecordBatch, prefix: str, number: int, where: str, tally: Tally) -> EpisodeBatch:
        lengths, has_rewards = _lengths(batch, ACTS, where), REWS in batch.schema.names
        for name in (OBS, REWS) if has_rewards else (OBS,):
            have = _lengths(batch, name, where) - (name == OBS)
            if (have != lengths).any():
                at = int(np.argmax(have != lengths))
                what = f"{have[at]} {'observations, less one,' if name == OBS else 'rewards'} for {lengths[at]} actions"
                raise BadEpisode(what, where=where, fix=FIX)
        if TERMINAL not in batch.schema.names or batch[TERMINAL].null_count or not pa.types.is_boolean(batch[TERMINAL].type):
            raise BadEpisode("terminal is no flag", where=where, fix=FIX)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rewards = np.asarray(self._values(batch, REWS, where, tally)) if has_rewards else np.zeros(starts[-1])
        terminal = np.asarray(batch[TERMINAL].to_numpy(zero_copy_only=False))
        made = EpisodeBatch(
            ids=tuple(f"{prefix}{number + at}" for at in range(len(lengths))),
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
    return not len(texts) or (is_text(texts.type) and set(texts.unique().to_pylist()) == {"{}"})
