"""The target folder of a write, from the writer's note to the final clean-up; foreign files are never touched.

A folder with a note is uncommitted, whatever else is in it. When a dataset is overwritten, its manifest and shards stay until
the new manifest is written; removing the note restores it. The generation in a shard's name is a hash of the write's options,
with a random salt if the folder was written before: no name is ever reused, so a reader with an older manifest cannot find
other episodes under it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from offline_cli.columns import Columns
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.file_names import (
    DATA,
    MANIFEST,
    QUARANTINE,
    SHARD_PATH,
    UNFINISHED_WRITING,
    WRITING,
    generation_of,
    new_generation,
)
from offline_cli.datasets.lock import APPENDS_TO, WritingLock, WritingNote, meanwhile, refuse_if_at_work, unlock
from offline_cli.datasets.manifest import CHANGES, IDENTITY, Manifest
from offline_cli.datasets.ownership import (
    is_own_part,
    keep_names,
    next_number,
    paths_listed_in,
    quarantine_files,
    refuse_foreign,
    shard_files,
)
from offline_cli.errors import (
    BadConfig,
    BadData,
    Locked,
    NoData,
    OutputExists,
    StorageNotFound,
    Uncommitted,
    UsageError,
)
from offline_cli.import_path import allowed_changes, content_hash_of
from offline_cli.parquet.reading import opened
from offline_cli.spaces import Space, describe, same_space
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file

REPAIRED_FIX: Final = "write the missing part to another --out, or everything again with --overwrite"
IN_ORDER: Final = ("commands", "sources", "source_formats", CHANGES)  # provenance lists that are concatenated
BEGIN_FIX: Final = "remove --append to start a dataset here, or name the dataset to append to"


# ---- before anything is written ----


def check_apart(places: Sequence[Location], target: Location) -> None:
    """Raise UsageError for a target inside one of the sources, which would read it the next time."""
    folder = target.parent()
    for place in places:
        if folder is not None and folder.is_at(place):
            raise UsageError("the output lies inside the source", where=target.url, fix="give an --out beside the source")


def exclusive(url: str, noun: str) -> UsageError:
    """The error for a call with both `resume` and `overwrite`."""
    fix = f"use --resume to resume the {noun}, or --overwrite to start it over"
    return UsageError("--resume and --overwrite are mutually exclusive", where=url, fix=fix)


def check_target(
    folder: Location,
    *,
    overwrite: bool = False,
    resume: bool = False,
    force_unlock: bool = False,
) -> WritingNote | None:
    """Check whether a write may start; return the note to resume from, or None for a new write.

    `resume` with nothing to resume starts a new write; `overwrite` replaces a dataset, never foreign files. `force_unlock`: the
    user confirms that the existing writer has ended. Raises OutputExists if existing files may not be replaced, Locked if
    another writer is active, UsageError for `resume` with `overwrite`, StorageError for a local folder that is not writable.
    """
    if resume and overwrite:
        raise exclusive(folder.url, "dataset")
    if folder.is_file():
        raise OutputExists("this is a file; a dataset is a folder", where=folder.url, fix="give another --out")
    kept = None
    if folder.exists():
        if force_unlock:
            unlock(folder)
        note = _note_in(folder, needed=resume)
        kept = (note or _unfinished(folder)) if resume else None
        if kept is not None or overwrite:
            refuse_foreign(folder, has_note=note is not None or kept is not None)
        elif not all(map(is_own_part, folder.children())):
            raise _exists(folder, resume=resume)
    folder.check_writable()
    return kept


def dataset_to_append_to(folder: Location, *, resume: bool = False, force_unlock: bool = False) -> Base:
    """The dataset in `folder` to append to, without the shards of an interrupted append that `resume` continues.

    Raises Locked, StorageNotFound, NoData; Uncommitted for a writer's note, unless `resume` continues that append;
    OutputExists for foreign files, and for a dataset whose own writer can still be resumed.
    """
    if not folder.exists():
        raise StorageNotFound("there is no dataset to append to", where=folder.url, fix=BEGIN_FIX)
    if force_unlock:
        unlock(folder)
    note = _note_to_append(folder, resume=resume)
    if not folder.join(MANIFEST).exists():
        raise NoData("there is no dataset to append to: no manifest.json", where=folder.url, fix=BEGIN_FIX)
    refuse_foreign(folder, has_note=note is not None)
    folder.check_writable()
    found = Manifest.read(folder)
    if not found.complete and UNFINISHED_WRITING in found.provenance:
        what = "the dataset is incomplete, and its own writer can be resumed"
        fix = "finish it first: run the command that wrote it with --resume; or offline-cli merge it into a new dataset"
        raise OutputExists(what, where=folder.url, fix=fix)
    return Base.without(folder, found, None if note is None else note.generation)


def _note_to_append(folder: Location, *, resume: bool) -> WritingNote | None:
    """The note of an append that `resume` continues. Raises Uncommitted for any other."""
    note = _note_in(folder, needed=resume)
    if note is not None and not (resume and APPENDS_TO in note.options):
        fix = f"finish it first ({note.command}, with --resume), or keep its complete shards with offline-cli repair"
        raise Uncommitted("a writer has not finished this dataset", where=folder.url, fix=fix)
    return note


def _note_in(folder: Location, *, needed: bool) -> WritingNote | None:
    """The writer's note in `folder`, or None; a broken one counts as None unless `needed`.

    Raises BadData for a broken note that is `needed`, Locked if its writer is active.
    """
    place = folder.join(WRITING)
    data = whole_file(place)
    note = WritingNote.of_bytes(data, where=place.url) if needed and data is not None else WritingNote.if_any(data, where="")
    if note is not None:
        refuse_if_at_work(note, place)
    return note


def _unfinished(folder: Location) -> WritingNote | None:
    """The note of a writer that committed an incomplete dataset, or None."""
    place = folder.join(MANIFEST)
    found = Manifest.read(folder) if place.exists() else None
    if found is None or found.complete or UNFINISHED_WRITING not in found.provenance:
        return None
    environment = found.environment and found.environment.as_json()
    return WritingNote.of_manifest(found.provenance[UNFINISHED_WRITING], environment, where=place.url)


def _exists(folder: Location, *, resume: bool) -> OutputExists:
    """The error for an existing folder that may not be replaced and cannot be resumed."""
    fix = "--overwrite to replace it, or another --out"
    if folder.join(WRITING).exists() or _unfinished(folder) is not None:
        what = "an unfinished dataset exists here"
        fix = f"--resume to continue it, {fix}"
    elif not folder.join(MANIFEST).exists():
        what, fix = "the folder is not empty, and holds no dataset", "give another --out"
    else:
        what = f"a dataset exists here already{'; it is complete or repaired and cannot be resumed' if resume else ''}"
    return OutputExists(what, where=folder.url, fix=fix)


# ---- the dataset to append to ----


class Base(Dataset):
    """The dataset that a write appends to, without shards that the same write added before an interruption."""

    @staticmethod
    def without(folder: Location, manifest: Manifest, generation: str | None) -> Base:
        """`generation`: of the shards to exclude."""
        return Base(folder, manifest, tuple(one for one in manifest.shards if generation_of(one.path) != generation))

    @property
    def paths(self) -> frozenset[str]:
        """Paths of its shards, relative to the dataset folder."""
        return frozenset(shard.path for shard in self.shards)

    @property
    def identity(self) -> str:
        """A hash of its content, which `resume` compares and which enters the names of the new shards."""
        return content_hash_of([(shard.path, shard.sha256) for shard in self.shards])

    def refuse_other(
        self, row_format: str, compression: str, spaces: tuple[Space | None, Space | None], action_scale: str
    ) -> None:
        """Raise BadConfig, naming each difference, unless the appended data has this dataset's format and spaces."""
        known = self.manifest
        given = {"format": row_format, "compression": compression, "action_scale": action_scale}
        pairs: dict[str, tuple[Any, Any]] = {name: (getattr(known, name), new) for name, new in given.items()}
        own = (known.observation_space, known.action_space)
        for name, space, new in zip(("the observation space", "the action space"), own, spaces, strict=True):
            pairs |= {} if same_space(space, new) else {name: (describe(space), describe(new))}
        wrong = [f"in the dataset {name} is {old}, not {new}" for name, (old, new) in pairs.items() if old != new]
        if wrong:
            raise BadConfig.of(wrong, where=self.location.url, fix="write to a separate dataset")

    def changes_to(self, identity: Mapping[str, Any], allow_changes: bool) -> list[str]:
        """Describe how `identity` differs from that of this dataset's recording. Raises as `allowed_changes` does."""
        known, fix = self.manifest.provenance.get(IDENTITY), "undo the change, write to a separate dataset"
        before = known if isinstance(known, dict) else {}
        return allowed_changes(before, identity, allow_changes, where=self.location.url, fix=fix)

    def with_added(self, added: Manifest) -> Manifest:
        """The combined manifest; shards, assumptions, losses and provenance of `added` cover only the append itself."""
        before, lost = self.manifest, (self.manifest.episodes_lost, added.episodes_lost)
        if len(self.shards) < len(before.shards):  # the write was killed after writing its manifest
            return before
        lists = ((name, before.provenance.get(name), added.provenance.get(name)) for name in IN_ORDER)
        lines = {name: [*one, *other] for name, one, other in lists if isinstance(one, list) and isinstance(other, list)}
        return replace(
            added,
            complete=added.complete and before.complete,
            shards=(*self.shards, *added.shards),
            assumptions=dict(Counter(before.assumptions) + Counter(added.assumptions)),
            episodes_lost=None if None in lost else sum(filter(None, lost)),
            provenance={**before.provenance, **added.provenance, **lines},
        )

    def ids(self) -> Iterator[Sequence[str]]:
        """Episode ids, shard by shard. Raises BadData, StorageError."""
        with self.plain(agents=False) as tables:
            yield from (table.column(Columns.EPS_ID).to_pylist() for table in tables)

    def schema(self) -> Any:
        """The pa.Schema of its shards; None without shards. Raises BadData, StorageError."""
        if not self.shards:
            return None
        with opened(self.location.join(self.shards[0].path), size=self.shards[0].bytes) as file:
            return file.schema_arrow


# ---- one write ----


class TargetFolder:
    """One write: `begin`, then one of `finish` (after the manifest), `leave` or `leave_no_trace`."""

    note: WritingNote  # of this write, set by `begin`; kept in the manifest of an incomplete dataset

    def __init__(self, folder: Location, command: str) -> None:
        """`command`: the writing command line, without secrets."""
        self.folder, self._command = folder, command
        self.resumed = False
        self._lock = WritingLock(folder)
        self.guard = self._lock.guard  # wrap every commit in it; raises TakenOver
        self._made: list[Location] = []  # folders created by this write, outermost first
        self._replaces_note = False  # whether it overwrites a crashed write
        self._base: Base | None = None  # the dataset to append to

    @property
    def generation(self) -> str:
        """The unique part of this write's file names."""
        return self.note.generation

    def begin(
        self,
        options: Mapping[str, Any],
        *,
        overwrite: bool,
        resume: bool,
        base: Base | None = None,
        allow_changes: bool | None = None,
    ) -> None:
        """Write the note, or take over an existing one.

        `base`: the dataset to append to. `allow_changes`: allow changes of the identity; None: there is no such option. Raises
        OutputExists, Locked if another writer is active or has changed `base`, BadConfig for changed options, StorageError.
        """
        self._base = base
        if base is None:
            note = check_target(self.folder, overwrite=overwrite, resume=resume)
        else:
            note = _note_to_append(self.folder, resume=resume)
        there = whole_file(self.folder.join(WRITING)) if self.folder.exists() else None
        if note is not None:
            if there is not None and WritingNote.of_bytes(there, where=self.folder.url) != note:
                raise meanwhile(self.folder)
            changes = [*note.changes, *note.changes_to(options, self.folder, allow_changes)]
            self._take_up(self._noted(note.generation, options, note.first_quarantine, changes), there)
            return
        self._made += self.folder.make_folder()
        try:
            self._begin_anew(options, there if overwrite else None)
        except Locked:  # the folder belongs to another writer
            raise
        except BaseException:
            self.leave_no_trace()
            raise

    def _noted(self, generation: str, options: Mapping[str, Any], quarantine: int, changes: list[str]) -> WritingNote:
        return WritingNote.of_this_process(generation, options, quarantine, self._command, changes)

    def _begin_anew(self, options: Mapping[str, Any], there: bytes | None) -> None:
        self._replaces_note = there is not None
        files, commit = before = self._there()
        listed, is_new = paths_listed_in(commit), not (there or files or commit)
        named = (SHARD_PATH.fullmatch(path) for path in listed)
        taken = {*files, *(match["generation"] for match in named if match)}
        if self._base is not None:  # its identity is in the options; but a repaired dataset may have used these names before
            is_new = "repaired" not in self._base.manifest.provenance
        generation = new_generation(options, taken, None if is_new else secrets.token_hex(8))
        self.note = self._noted(generation, options, next_number(self.folder), [])
        self._lock.acquire(self.note, instead_of=there)
        if self._there() != before or (self._base is not None and listed != self._base.paths):
            self._lock.release()
            raise meanwhile(self.folder)
        self._remove_parts()
        self._made += self.folder.join(DATA).make_folder()

    def _there(self) -> tuple[frozenset[str], bytes | None]:
        """Generations of the files in `data/`, and the commit."""
        return frozenset(shard_files(self.folder)), whole_file(self.folder.join(MANIFEST))

    def _take_up(self, note: WritingNote, there: bytes | None) -> None:
        self.note, self.resumed = note, True
        self._lock.acquire(note, instead_of=there)
        self._remove_parts()
        self.folder.join(DATA).make_folder()
        keep_names(self.folder.join(DATA))  # the killed writer may not have synced the shards to adopt
        self._remove_rejects(own=True)  # their rows will be rejected again

    def _remove_parts(self) -> None:
        """Remove incomplete files of a killed writer."""
        with self.guard():
            for child in filter(is_own_part, self.folder.children()):
                with suppress(StorageNotFound):  # a rejected concurrent writer removed its own
                    child.remove()

    def _remove_rejects(self, *, own: bool) -> None:
        """Remove rejected rows of this write (`own`), or of earlier ones."""
        for number, file in quarantine_files(self.folder).items():
            if (number >= self.note.first_quarantine) is own:
                file.remove()

    def own_files(self) -> list[Location]:
        """The complete files of this write, in order. Raises BadData if one is missing between others."""
        found = shard_files(self.folder).get(self.generation, {})
        missing = min({*range(len(found))} - found.keys(), default=None)
        if missing is not None:
            what = f"shard {missing} is missing, but later ones exist"
            raise BadData(what, where=self.folder.url, fix="write the dataset again, with --overwrite")
        return [file for _, file in sorted(found.items())]

    # ---- end of a write ----

    def finish(self, listed: frozenset[str] = frozenset()) -> None:
        """Remove what the new manifest has replaced, and then the note: the dataset is committed.

        `listed`: shards of other writes that the new manifest lists too, below the dataset folder. A reader with the older
        manifest is told (`Dataset`); it never reads other rows.
        """
        kept = listed if self._base is None else listed | self._base.paths
        older = (files for name, files in shard_files(self.folder).items() if name != self.generation)
        replaced = [file for files in older for file in files.values() if f"{DATA}/{file.name}" not in kept]
        folders = [self.folder.join(name) for name in (DATA, QUARANTINE)]
        with self.guard():  # checked after the listing, so that none of these is another writer's
            for file in replaced:
                file.remove()
            if self._base is None:
                self._remove_rejects(own=False)
            keep_names(*folders)  # removals are durable before the note is removed
            for folder in folders:
                folder.remove_empty_folder()
            self._lock.release()

    def leave(self) -> None:
        """End the write so that it can be resumed immediately; no effect if another writer has taken over."""
        if self._lock.held:
            self._lock.leave()

    def leave_no_trace(self) -> None:
        """Remove everything this write created if it has no complete shard; otherwise `leave`.

        No effect if another writer has taken over: it may be about to write into a folder that is empty now.
        """
        if self._lock.lost:
            return
        if self._lock.held:
            if self._replaces_note or self.own_files():  # an interrupt may follow the first shard
                self.leave()
                return
            with self.guard():
                self._remove_rejects(own=True)
                self.folder.join(QUARANTINE).remove_empty_folder()
                self._lock.release()
        for folder in reversed(self._made):
            folder.remove_empty_folder()
