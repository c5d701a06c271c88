"""Write a dataset atomically: note, shards, manifest, and only then removal of the replaced files.

    with DatasetWriter("D", observation_space=env.observation_space, action_space=env.action_space) as writer:
        for batch in batches:
            writer.write(batch)
        manifest = writer.commit()

A crash at any point leaves the previous dataset (plus the note), the new one (plus the note), or complete shards from which
`resume` continues. Leaving the block by an exception, or without `commit`, keeps the note and complete shards; without complete
shards, everything is removed. With `base`, the shards are added beside those of a dataset, which are unchanged; the new
manifest lists both.
"""

from __future__ import annotations

import logging
import os
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
from offline_cli.datasets.manifest import CHANGES, EnvironmentRecord, Manifest, Reference, Shard, now, with_defaults
from offline_cli.datasets.ownership import next_number, write_rejects
from offline_cli.datasets.row_format import Rows
from offline_cli.datasets.shards import Piece, ShardSequence, adopt, raw_bytes
from offline_cli.datasets.statistics import EpisodeStatistics
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
    """Writes a dataset, as a context manager; `commit` publishes it. All methods raise StorageError."""

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
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """`location`: the target folder, a path or a URL; only `with` starts to write.

        Spaces may be None only for `episodes`. `action_scale`: `env` | `normalized` | `unknown`, of Box actions.
        `max_rows_per_file` counts rows, i.e. episodes or steps; `max_bytes_per_file` counts arrays before compression; a larger
        episode gets its own file. `provenance`: see schemas/manifest.v1.json; missing parts are filled in. `identity`:
        everything that determines the content, by name, as JSON values without secrets; `resume` requires the same identity
        unless `allow_changes`, which counts the changes, and so does `base` if `allow_changes` is not None. `base`: the
        existing dataset to append to. `reference`: returns for normalised scores; None: those of `base`.
        Raises UsageError, UnsupportedSpace; BadConfig if `base` has another format, compression, action scale, spaces or
        meanings.
        """
        self.location = open_location(location, storage_options)
        self._tally = Tally() if tally is None else tally
        self._spaces = observation_space, action_space
        self._rows = row_format(format, *self._spaces, self._tally)
        self._changes: list[str] = []  # of the identity, as text
        if base is not None:
            base.refuse_other(format, check_compression(compression), self._spaces, action_scale)
            meanings, _ = joined([(self.location.url, base.manifest.meanings), ("the appended data", meanings)])
            reference = reference or base.manifest.reference
            self._changes += [] if allow_changes is None else base.changes_to(identity, allow_changes)
        self._known: dict[str, Any] = {  # manifest fields known from the start
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
        self._options: dict[str, Any] = {  # must be equal to resume a write; plain JSON values
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
        self._last: EpisodeBatch | None = None  # has the structure of the open row group
        self._statistics = EpisodeStatistics()
        self._started = ""
        self._committed = False
        self._ids = set[str]()  # of all episodes, including adopted ones and those of `base`
        self._next_quarantine: int | None = None  # number of the next quarantine file; None before the first
        self.ids_written: frozenset[str] = frozenset()
        """Ids of the episodes in shards that `resume` found; the caller need not write them again."""
        self.episodes_written = 0
        """Episodes written so far, including those in shards that `resume` found; those without a row are not counted."""

    @property
    def steps_written(self) -> int:
        """Steps in row groups so far, including shards that `resume` found; the last episodes may still be pending."""
        return self._statistics.steps

    @property
    def complete_shards(self) -> Sequence[Shard]:
        """Complete shards of this write, including those that `resume` found."""
        return () if self._shards is None else self._shards.finished

    def __enter__(self) -> Self:
        """Write the note.

        Raises OutputExists, Locked if another writer is active; with `resume` also BadConfig (changed options) and BadData
        (broken shards, also of `base`).
        """
        self._started = now()
        self._target.begin(self._options, **self._begin)
        self._changes += self._target.note.changes
        if self._changes:
            self._tally.assume(CHANGED, len(self._changes))
            _log.warning("note: the existing episodes were recorded before these changes: %s", "; ".join(self._changes))
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
            adopted = adopt(place, self._rows, self._statistics)
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
            error.add_note(f"the clean-up failed too: {failed}")

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
        """Append whole episodes with new ids. Arrays may be buffered, so do not modify them afterwards. Multi-agent episodes
        are written as one episode per agent.

        Raises BadEpisode or BadData for episodes that do not fit the spaces or the format, and for duplicate ids; TakenOver if
        another writer has taken over; UsageError outside of `with`, and after `commit`.
        """
        shards = self._open_shards()
        batch = self._prepared(batch if isinstance(batch, EpisodeBatch) else EpisodeBatch.from_episodes(agents_of(batch)))
        if not len(batch):
            return
        if self._last is not None and self._last.structure_difference(batch):  # one table cannot hold both
            shards.flush()
        self._last = batch
        shards.add(batch, self._rows.rows_of(batch), raw_bytes(batch))

    def write_rows(self, rows: Rows, plain: Any) -> None:
        """Append whole episodes as stored rows, without decoding; `plain`: a pa.Table of their plain columns.

        All must have the columns of the first. Raises as `write` does.
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
        """Check `batch` and count assumptions as `write` does, but keep only its ids. Raises as `write` does."""
        prepared = self._prepared(batch)
        if len(prepared):
            self._rows.table(prepared, where=self.location.url)

    def _prepared(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Convert `batch` to its stored form, with the manifest's spaces where it has some; registers its ids."""
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
            what = f"two episodes have the id {twice!r}"
            fix = "give every episode a unique id; with resume=True skip the ids in writer.ids_written"
            raise BadEpisode(what, where=self.location.url, fix=fix)
        self._ids.update(ids)
        self.episodes_written += len(ids)

    def _table_of(self, pieces: Sequence[Piece]) -> tuple[Any, int, int]:
        """The pa.Table of some pieces of batches or rows, and its numbers of episodes and steps; updates the statistics."""
        if isinstance(pieces[0].item, EpisodeBatch):
            parts = ((piece.item, slice(piece.first, piece.last)) for piece in pieces)
            batch = EpisodeBatch.concat([one if part == slice(0, len(one)) else one.select(part) for one, part in parts])
            table = self._rows.table(batch, where=self.location.url)
            self._statistics.add(batch)
            return table, len(batch), batch.num_steps
        tables, plain = [], []
        for piece in pieces:
            rows, columns = piece.item
            first, last = int(rows.starts[piece.first]), int(rows.starts[piece.last])
            tables.append(rows.table.slice(first, last - first))
            plain.append(columns.slice(piece.first, piece.last - piece.first))
        episodes = pa.concat_tables(plain)
        self._statistics.add_plain(episodes)
        return pa.concat_tables(tables), len(episodes), pc.sum(episodes.column(Columns.LENGTH)).as_py()

    def quarantine(self, rejects: list[Reject]) -> None:
        """Write rejected rows to `quarantine/`, and clear the list."""
        if rejects:
            if self._next_quarantine is None:
                self._next_quarantine = next_number(self.location)
            with self._target.guard():
                write_rejects(self.location, rejects, self._next_quarantine)
            self._next_quarantine += 1
            rejects.clear()

    # ---- end of a write ----

    def commit(
        self,
        *,
        complete: bool = True,
        assumptions: Mapping[str, int] | None = None,
        provenance: Mapping[str, Any] | None = None,
        episodes_lost: int | None = None,
    ) -> Manifest:
        """Finish the last shard, write the manifest, remove replaced files; return the manifest.

        `complete`: whether the dataset holds everything that was requested. `assumptions`: counts by kind; None: the tally's.
        `provenance`: parts known only at the end. `episodes_lost`: source episodes that are missing; None: unknown.
        """
        shards = self._open_shards()
        shards.close()
        counted = dict(self._tally.assumptions if assumptions is None else assumptions)
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
            raise UsageError("the writer is used outside of `with`, or after `commit`", where=self.location.url, fix=fix)
        return self._shards


def agents_of(episode: SingleAgentEpisode | MultiAgentEpisode) -> list[SingleAgentEpisode]:
    """The single-agent episodes of an episode."""
    return [episode] if isinstance(episode, SingleAgentEpisode) else list(episode.agent_episodes.values())
