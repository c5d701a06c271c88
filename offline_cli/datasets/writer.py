"""Writes a dataset so that it exists only when whole: note, shards, manifest, and only then removal of what was there before.

    with DatasetWriter("D", observation_space=env.observation_space, action_space=env.action_space) as writer:
        for batch in batches:
            writer.write(batch)
        manifest = writer.commit()

A crash at any point leaves the dataset that was there before (plus the note), or the new one (plus the note), or complete
shards that `resume` continues from. Leaving the block by an exception, or without `commit`, keeps the note and the complete
shards; where no shard was complete yet it leaves no trace. With `base` the shards are a generation beside those of a dataset:
these keep names and bytes, and the new manifest lists both.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offline_cli.choices import COMPRESSION, MAX_BYTES_PER_FILE, ROW_FORMAT, RowFormat
from offline_cli.columns import Columns
from offline_cli.datasets.card import write_card
from offline_cli.datasets.dataset import row_format
from offline_cli.datasets.file_names import MANIFEST, UNFINISHED_WRITING
from offline_cli.datasets.lock import APPENDS_TO
from offline_cli.datasets.manifest import CHANGES, EnvironmentRecord, Manifest, Reference, now, with_defaults
from offline_cli.datasets.ownership import next_number, write_rejects
from offline_cli.datasets.row_format import Rows
from offline_cli.datasets.shards import Piece, ShardSequence, adopt, raw_bytes
from offline_cli.datasets.statistics import EpisodeStatistics, not_finite
from offline_cli.datasets.target_folder import Base, TargetFolder
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.multi_agent_episode import MultiAgentEpisode
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode, StorageError, UsageError
from offline_cli.meanings import NO_MEANINGS, Meanings, joined
from offline_cli.parquet.writing import check_compression
from offline_cli.spaces import Space, space_to_json
from offline_cli.storage.blanking import this_command
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import write_whole
from offline_cli.tally import CHANGED, Reject, Tally

UNKNOWN: Final = "unknown"
NO_PARTS: Final[Mapping[str, Any]] = {}
_log = logging.getLogger(__name__)


class DatasetWriter:
    """A dataset being written, as a context manager; `commit` makes it one. Raises StorageError throughout."""

    def __init__(
        self,
        location: str | os.PathLike[str] | Location,
        *,
        format: RowFormat = ROW_FORMAT,
        observation_space: Space | None,
        action_space: Space | None,
        action_scale: str = UNKNOWN,
        environment: EnvironmentRecord | None = None,
        meanings: Meanings = NO_MEANINGS,
        reference: Reference | None = None,
        spaces_inferred: bool = False,
        provenance: Mapping[str, Any] | None = None,
        compression: str = COMPRESSION,
        max_rows_per_file: int | None = None,
        max_bytes_per_file: int | None = MAX_BYTES_PER_FILE,
        overwrite: bool = False,
        resume: bool = False,
        base: Base | None = None,
        tally: Tally | None = None,
        identity: Mapping[str, Any] = NO_PARTS,
        allow_changes: bool | None = None,
        count_not_finite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Nothing is touched before `with`. `location`: the folder to make, a path or a URL.

        Spaces may be None for `episodes` only. `action_scale`: `env` | `normalized` | `unknown`, of Box actions.
        `max_rows_per_file` counts episodes or steps, as rows do; `max_bytes_per_file` arrays before compression; one episode
        larger than either has a file of its own. `provenance`: see schemas/manifest.v1.json; missing parts are filled in.
        `reference`: mean returns of random play and an expert, for normalised scores; None: those of `base`.
        `identity`: what the content follows from, by name, as JSON values without secrets: `resume` asks for the same, unless
        `allow_changes`, which counts them; a `base` too where that is not None. `base`: the dataset here, which is added to.
        `count_not_finite`: NaN and infinite values are counted among the assumptions, `nan-in-rewards` for one. Raises
        UsageError, UnsupportedSpace; BadConfig for a `base` of another format, compression, action scale, spaces or meanings.
        """
        self.location = open_location(location, storage_options)
        self._tally = Tally() if tally is None else tally
        self._spaces = observation_space, action_space
        self._rows = row_format(format, *self._spaces, self._tally)
        self._changes: list[str] = []  # of the identity, in words
        if base is not None:
            base.refuse_other(format, check_compression(compression), self._spaces, action_scale)
            meanings, _ = joined([(self.location.url, base.manifest.meanings), ("what is added", meanings)])
            reference = reference or base.manifest.reference
            self._changes += [] if allow_changes is None else base.changes_to(identity, allow_changes)
        self._known: dict[str, Any] = {  # of the manifest, what is known from the start
            "format": format,
            "environment": environment,
            "observation_space": observation_space,
            "action_space": action_space,
            "spaces_inferred": spaces_inferred,
            "action_scale": action_scale,
            "meanings": meanings,
            "reference": reference,
            "compression": check_compression(compression),
        }
        self._options: dict[str, Any] = {  # what must be equal for a write to be resumed; plain JSON values
            "format": format,
            "observation_space": observation_space and space_to_json(observation_space),
            "action_space": action_space and space_to_json(action_space),
            "action_scale": action_scale,
            "compression": compression,
            "max_rows_per_file": max_rows_per_file,
            "max_bytes_per_file": max_bytes_per_file,
            "environment": environment and environment.as_json(),
            "meanings": meanings.as_json(),
            **({} if reference is None else {"reference": reference}),
            "identity": dict(identity),
            **({} if base is None else {APPENDS_TO: base.identity}),
        }
        self._begin: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "base": base, "allow_changes": allow_changes}
        self._base = base
        self._provenance = dict(provenance or {})
        self._target = TargetFolder(self.location, (self._provenance.get("commands") or [this_command()])[-1])
        self._shards: ShardSequence | None = None
        self._last: EpisodeBatch | None = None  # whose structure the open row group has
        self._statistics = EpisodeStatistics()
        self._not_finite: Counter[str] | None = Counter() if count_not_finite else None
        self._started = ""
        self._committed = False
        self._ids = set[str]()  # of the episodes there, adopted ones and those of `base` included
        self._next_quarantine: int | None = None  # number of the next file of rows set aside, once there is one
        self.ids_written: frozenset[str] = frozenset()
        """Ids of the episodes in the shards that `resume` found: what the caller need not write again."""
        self.episodes_written = 0
        """Episodes taken so far, those of the shards that `resume` found included; ones without a row are not counted."""

    @property
    def steps_written(self) -> int:
        """Steps in row groups by now: all of the shards that `resume` found, but maybe not of the last episodes written."""
        return self._statistics.steps

    def __enter__(self) -> Self:
        """Write the note.

        Raises OutputExists, Locked where another writer is at work; with `resume` also BadConfig (other options) and BadData
        (broken shards), which `base` may have too.
        """
        self._started = now()
        self._target.begin(self._options, **self._begin)
        self._changes += self._target.note.changes
        if self._changes:
            self._tally.assume(CHANGED, len(self._changes))
            _log.warning("note: what is there was recorded before these changes: %s", "; ".join(self._changes))
        self._shards = ShardSequence(
            self.location,
            self._target.generation,
            compression=self._known["compression"],
            guard=self._target.guard,
            table_of=self._table_of,
            max_rows=self._options["max_rows_per_file"],
            max_bytes=self._options["max_bytes_per_file"],
        )
        try:
            if self._base is not None:
                self._adopt_base(self._base)
            if self._target.resumed:
                self._adopt_shards(self._shards)
        except BaseException:
            self._abandon()
            raise
        return self

    def _adopt_base(self, base: Base) -> None:
        schema = base.schema()
        if schema is not None:
            self._rows.adopt(schema)
        with base.plain(agents=False) as tables:
            for table in tables:
                self._statistics.add_plain(table)
                self._ids.update(table.column(Columns.EPS_ID).to_pylist())
        self._statistics.unfinished = base.manifest.counts.unfinished

    def _adopt_shards(self, shards: ShardSequence) -> None:
        ids = set[str]()
        for place in self._target.own_files():
            adopted = adopt(place, self._rows, self._statistics, None if self._not_finite is None else self._see)
            shards.finished.append(adopted.shard)
            self._take_ids(adopted.ids)
            ids.update(adopted.ids)
        self.ids_written = frozenset(ids)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._committed:
            return
        try:
            self._abandon()
        except StorageError as failed:
            if error is None:
                raise
            error.add_note(f"cleaning up failed too: {failed}")

    def _abandon(self) -> None:
        if self._shards is None:
            return
        self._shards.discard()
        if not self._shards.finished and not self._target.resumed:
            self._target.leave_no_trace()
        else:
            self._target.leave()

    # ---- writing ----

    def write(self, batch: EpisodeBatch | SingleAgentEpisode | MultiAgentEpisode) -> None:
        """Append whole episodes, with new ids; their arrays may wait here, so do not change them afterwards. Of an episode of
        several agents each agent's is written.

        Raises BadEpisode, BadData where they do not fit the spaces or the format, or where an id is there already; TakenOver
        where another writer has taken over; UsageError outside of `with`, and after `commit`.
        """
        shards = self._open_shards()
        batch = self._prepared(batch if isinstance(batch, EpisodeBatch) else EpisodeBatch.from_episodes(agents_of(batch)))
        if not len(batch):
            return
        if self._last is not None and self._last.structure_difference(batch):  # which one table cannot hold
            shards.flush()
        self._last = batch
        shards.add(batch, self._rows.rows_of(batch), raw_bytes(batch))

    def write_rows(self, rows: Rows, plain: Any) -> None:
        """Append whole episodes by their rows, which are not decoded; `plain`: a pa.Table of their plain columns.

        All have the columns of the first. Raises as `write` does.
        """
        shards = self._open_shards()
        self._rows.adopt(rows.table.schema)
        self._take_ids(tuple(plain.column(Columns.EPS_ID).to_pylist()))
        lengths = np.diff(rows.starts)
        if self._rows.has_steps:
            sizes = lengths * max(1, rows.table.nbytes // max(1, rows.table.num_rows))
        else:
            sizes = pc.binary_length(rows.table.column(Columns.ITEM)).to_numpy().astype(np.int64)
        shards.add((rows, plain), lengths, sizes)

    def rehearse(self, batch: EpisodeBatch) -> None:
        """Raise and count as `write` would, and keep only the ids. Raises as `write` does."""
        prepared = self._prepared(batch)
        if len(prepared):
            self._rows.table(prepared, where=self.location.url)

    def _prepared(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` as it is stored, with the spaces of the manifest where both have some; its ids are taken."""
        batch = self._rows.prepare(batch)
        self._take_ids(batch.ids)
        if self._known["spaces_inferred"]:
            return batch
        own = batch.observation_space, batch.action_space
        obs, actions = (mine if mine is None or ours is None else ours for mine, ours in zip(own, self._spaces, strict=True))
        is_same = obs is own[0] and actions is own[1]
        return batch if is_same else replace(batch, observation_space=obs, action_space=actions)

    def _take_ids(self, ids: tuple[str, ...]) -> None:
        known = self._ids.intersection(ids)
        if known or len(set(ids)) < len(ids):
            twice = next(name for i, name in enumerate(ids) if name in known or name in ids[:i])
            what = f"two episodes are called {twice!r}: rows of one id are one episode"
            fix = "give every episode an id of its own; with resume=True leave out those of writer.ids_written"
            raise BadEpisode(what, where=self.location.url, fix=fix)
        self._ids.update(ids)
        self.episodes_written += len(ids)

    def _table_of(self, pieces: Sequence[Piece]) -> tuple[Any, int, int]:
        """The pa.Table of some pieces of batches, or of rows, and how many episodes and steps it holds; counts them."""
        if isinstance(pieces[0].item, EpisodeBatch):
            parts = ((piece.item, slice(piece.first, piece.last)) for piece in pieces)
            batch = EpisodeBatch.concat([one if part == slice(0, len(one)) else one.select(part) for one, part in parts])
            table = self._rows.table(batch, where=self.location.url)
            self._statistics.add(batch)
            self._see(batch)
            return table, len(batch), batch.num_steps
        tables, plain = [], []
        for piece in pieces:
            rows, told = piece.item
            first, last = int(rows.starts[piece.first]), int(rows.starts[piece.last])
            tables.append(rows.table.slice(first, last - first))
            plain.append(told.slice(piece.first, piece.last - piece.first))
        episodes = pa.concat_tables(plain)
        self._statistics.add_plain(episodes)
        return pa.concat_tables(tables), len(episodes), pc.sum(episodes.column(Columns.LENGTH)).as_py()

    def _see(self, batch: EpisodeBatch) -> None:
        if self._not_finite is not None:
            self._not_finite += not_finite(batch)

    def quarantine(self, rejects: list[Reject]) -> None:
        """Write rows that were set aside to `quarantine/`, and empty the list."""
        if rejects:
            if self._next_quarantine is None:
                self._next_quarantine = next_number(self.location)
            with self._target.guard():
                write_rejects(self.location, rejects, self._next_quarantine)
            self._next_quarantine += 1
            rejects.clear()

    # ---- ends ----

    def commit(
        self,
        *,
        complete: bool = True,
        assumptions: Mapping[str, int] | None = None,
        provenance: Mapping[str, Any] | None = None,
        episodes_lost: int | None = None,
    ) -> Manifest:
        """Finish the last shard, write the manifest, remove what it replaces; the manifest.

        `complete`: whether all that was asked for is in it. `assumptions`: counts by kind; None: the tally's. `provenance`:
        what is known only at the end. `episodes_lost`: how many of the source are not in it; None: not known.
        """
        shards = self._open_shards()
        shards.close()
        counted = {**(self._tally.assumptions if assumptions is None else assumptions), **(self._not_finite or {})}
        known = with_defaults({**self._provenance, **(provenance or {})}, started=self._started)
        known |= {CHANGES: self._changes} if self._changes else {}
        if not complete:
            known[UNFINISHED_WRITING] = self._target.note.within_manifest(self._options["environment"])
        manifest = Manifest(
            **self._known,
            complete=complete,
            counts=self._statistics.counts(counted),
            shards=tuple(shards.finished),
            statistics=self._statistics.as_json(),
            assumptions=counted,
            provenance=known,
            episodes_lost=episodes_lost,
        )
        if self._base is not None:
            manifest = self._base.with_added(manifest)
        with self._target.guard():
            write_whole(self.location.join(MANIFEST), manifest.to_bytes(), folder=self.location)
            write_card(self.location, manifest)
            self._target.finish()
        self._committed = True
        return manifest

    def _open_shards(self) -> ShardSequence:
        if self._shards is None or self._committed:
            fix = "with DatasetWriter(...) as writer: writer.write(batch); writer.commit()"
            raise UsageError("a writer is used outside its `with`, or after its `commit`", where=self.location.url, fix=fix)
        return self._shards


def agents_of(episode: SingleAgentEpisode | MultiAgentEpisode) -> list[SingleAgentEpisode]:
    """The episodes of its agents; of a single one itself."""
    return [episode] if isinstance(episode, SingleAgentEpisode) else list(episode.agent_episodes.values())
