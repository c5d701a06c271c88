"""The folder being written into, from the first note to the last clean-up; nothing unasked for is touched.

A folder with a note is uncommitted, whatever else is in it. Over an older dataset the note does not harm it: its manifest and
shards stay until the new manifest is written, and removing the note brings it back. The generation in a shard's name is a hash
of the write's options; where something was written before it is salted at random: no name is ever used again, under which a
reader with an older manifest would find other episodes. All of this holds for train batches too (`FolderKind`).
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
    DATASET,
    MANIFEST,
    QUARANTINE,
    UNFINISHED_WRITING,
    WRITING,
    FolderKind,
    generation_of,
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
    StorageError,
    StorageNotFound,
    Uncommitted,
    UsageError,
)
from offline_cli.import_path import allowed_changes, content_hash_of
from offline_cli.parquet.reading import opened
from offline_cli.spaces import Space, describe, same_space
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import open_uploads, whole_file

REPAIRED_FIX: Final = "write what is missing to another --out, or everything again with --overwrite"
IN_ORDER: Final = ("commands", "sources", "source_formats", CHANGES)  # of a provenance, what is joined
BEGIN_FIX: Final = "leave out --append to begin a dataset here, or name the one to add to"


# ---- before anything is written ----


def check_apart(places: Sequence[Location], target: Location) -> None:
    """Raise UsageError for a target inside one of the sources: it would be a part of that source the next time."""
    for place in places:
        if place.fs == target.fs and target.path.startswith(place.path.rstrip("/") + "/"):
            raise UsageError("the output lies inside the source", where=target.url, fix="give an --out beside the source")


def exclusive(url: str, noun: str) -> UsageError:
    """The error for a call with both `resume` and `overwrite`."""
    fix = f"--resume to resume the {noun}, or --overwrite to begin it again"
    return UsageError("--resume and --overwrite are mutually exclusive", where=url, fix=fix)


def check_target(
    folder: Location,
    *,
    overwrite: bool = False,
    resume: bool = False,
    force_unlock: bool = False,
    kind: FolderKind = DATASET,
) -> WritingNote | None:
    """The note to resume from, with `resume`; None where writing starts anew.

    `resume` where nothing was begun starts; `overwrite` replaces a dataset, never foreign files. `force_unlock`: the user's
    word that the writer that is there has ended; nothing else is changed. Raises OutputExists where what is there may not be
    touched, Locked where another writer is at work, UsageError for both at once, StorageError for a local folder that could not
    be written to.
    """
    if resume and overwrite:
        raise exclusive(folder.url, kind.noun)
    if folder.is_file():
        raise OutputExists(f"a file is here; a {kind.noun} is a folder", where=folder.url, fix="give another --out")
    kept = None
    if folder.exists():
        if force_unlock:
            unlock(folder)
        note = _note_in(folder, kind, needed=resume)
        kept = (note or _unfinished(folder)) if resume else None
        if kept is not None or overwrite:
            refuse_foreign(folder, kind, has_note=note is not None or kept is not None)
        elif not all(map(is_own_part, folder.children())):
            raise _exists(folder, kind, resume=resume)
    folder.check_writable()
    return kept


def dataset_to_append_to(folder: Location, *, resume: bool = False, force_unlock: bool = False) -> Base:
    """The dataset in `folder`, as it was before an interrupted write that `resume` continues.

    Raises Locked, StorageNotFound, NoData; Uncommitted for a writer's note, unless `resume` continues what it began here;
    OutputExists for files in it that are nobody's of ours, and for a dataset whose own writer can still be resumed.
    """
    if not folder.exists():
        raise StorageNotFound("no dataset is here to append to", where=folder.url, fix=BEGIN_FIX)
    if force_unlock:
        unlock(folder)
    note = _note_to_append(folder, resume=resume)
    if not folder.join(MANIFEST).exists():
        raise NoData("no dataset is here to append to: there is no manifest.json", where=folder.url, fix=BEGIN_FIX)
    refuse_foreign(folder, DATASET, has_note=note is not None)
    folder.check_writable()
    found = Manifest.read(folder)
    if not found.complete and UNFINISHED_WRITING in found.provenance:
        what = "the dataset here was committed before it was complete, and its own writer can continue it"
        fix = "finish it first, with --resume of the command that wrote it; or offline-cli merge it into a new dataset"
        raise OutputExists(what, where=folder.url, fix=fix)
    return Base.without(folder, found, None if note is None else note.generation)


def _note_to_append(folder: Location, *, resume: bool) -> WritingNote | None:
    """The note of an append that `resume` continues. Raises Uncommitted for any other."""
    note = _note_in(folder, DATASET, needed=resume)
    if note is not None and not (resume and APPENDS_TO in note.options):
        fix = f"finish it first ({note.command}, with --resume), or make a dataset of what is whole with offline-cli repair"
        raise Uncommitted("a writer has not finished this dataset", where=folder.url, fix=fix)
    return note


def _note_in(folder: Location, kind: FolderKind, *, needed: bool) -> WritingNote | None:
    """The writer's note in `folder`; None also for a broken one that is not `needed`.

    Raises BadData, Locked where its writer is at work, OutputExists where it writes something else.
    """
    place = folder.join(WRITING)
    data = whole_file(place)
    note = WritingNote.of_bytes(data, where=place.url) if needed and data is not None else WritingNote.if_any(data, where="")
    if note is not None:
        refuse_if_at_work(note, place)
        if note.writes != kind.noun:
            what = f"an unfinished {note.writes} is here, not a {kind.noun}"
            raise OutputExists(what, where=folder.url, fix=f"give another --out, or finish it: {note.command}")
    return note


def _unfinished(folder: Location) -> WritingNote | None:
    """The note of a writer that committed what it had, before all that was asked for was in it."""
    place = folder.join(MANIFEST)
    found = Manifest.read(folder) if place.exists() else None
    if found is None or found.complete or UNFINISHED_WRITING not in found.provenance:
        return None
    environment = found.environment and found.environment.as_json()
    return WritingNote.of_manifest(found.provenance[UNFINISHED_WRITING], environment, where=place.url)


def _exists(folder: Location, kind: FolderKind, *, resume: bool) -> OutputExists:
    """The error for a folder in which something is that was not asked to be replaced, nor can be resumed."""
    fix = "--overwrite to replace it, or another --out"
    if folder.join(WRITING).exists() or (kind is DATASET and _unfinished(folder) is not None):
        what = f"an unfinished {kind.noun} is here"
        fix = f"--resume to continue it, {fix}" if kind is DATASET else fix
    elif not folder.join(kind.commit).exists():
        what, fix = f"the folder is not empty, and holds no {kind.noun}", "give another --out"
    else:
        what = f"a {kind.noun} is here already{', complete or repaired: no write of it can be resumed' if resume else ''}"
    return OutputExists(what, where=folder.url, fix=fix)


# ---- what is added to ----


class Base(Dataset):
    """The dataset that a write adds to, without the shards that the write itself has added before it was interrupted."""

    @staticmethod
    def without(folder: Location, manifest: Manifest, generation: str | None) -> Base:
        """`generation`: of the shards that are not part of it."""
        return Base(folder, manifest, tuple(one for one in manifest.shards if generation_of(one.path) != generation))

    @property
    def paths(self) -> frozenset[str]:
        """Of its shards, below the dataset folder."""
        return frozenset(shard.path for shard in self.shards)

    @property
    def identity(self) -> str:
        """A hash that no other content has: what `resume` compares, and what the names of the new shards depend on."""
        return content_hash_of([(shard.path, shard.sha256) for shard in self.shards])

    def refuse_other(
        self, row_format: str, compression: str, spaces: tuple[Space | None, Space | None], action_scale: str
    ) -> None:
        """Raise BadConfig, naming each difference, unless what is to be added is written as this dataset is."""
        known = self.manifest
        said = {"format": row_format, "compression": compression, "action_scale": action_scale}
        pairs: dict[str, tuple[Any, Any]] = {name: (getattr(known, name), new) for name, new in said.items()}
        own = (known.observation_space, known.action_space)
        for name, space, new in zip(("the observation space", "the action space"), own, spaces, strict=True):
            pairs |= {} if same_space(space, new) else {name: (describe(space), describe(new))}
        wrong = [f"in the dataset {name} is {old}, not {new}" for name, (old, new) in pairs.items() if old != new]
        if wrong:
            raise BadConfig.of(wrong, where=self.location.url, fix="write into a dataset of its own")

    def changes_to(self, identity: Mapping[str, Any], allow_changes: bool) -> list[str]:
        """How `identity` differs from what this dataset was recorded with. Raises as `allowed_changes` does."""
        known, fix = self.manifest.provenance.get(IDENTITY), "undo the change, write into a dataset of its own"
        before = known if isinstance(known, dict) else {}
        return allowed_changes(before, identity, allow_changes, where=self.location.url, fix=fix)

    def with_added(self, added: Manifest) -> Manifest:
        """The manifest of both; of `added`, shards, assumptions, losses and provenance are those of the write alone."""
        before, lost = self.manifest, (self.manifest.episodes_lost, added.episodes_lost)
        if len(self.shards) < len(before.shards):  # the write was killed between its manifest and its end
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
        """Ids of the episodes, shard by shard. Raises BadData, StorageError."""
        with self.plain(agents=False) as tables:
            yield from (table.column(Columns.EPS_ID).to_pylist() for table in tables)

    def schema(self) -> Any:
        """The pa.Schema of its shards; None: it has none. Raises BadData, StorageError."""
        if not self.shards:
            return None
        with opened(self.location.join(self.shards[0].path), size=self.shards[0].bytes) as file:
            return file.schema_arrow


# ---- one write ----


class TargetFolder:
    """One write; `begin`, then either `finish` (after the manifest), `leave` or `leave_no_trace`."""

    note: WritingNote  # of this write, since `begin`; a manifest keeps it that is committed before the dataset is complete

    def __init__(self, folder: Location, command: str, kind: FolderKind = DATASET) -> None:
        """`command`: what writes, without secrets."""
        self.folder, self.kind, self._command = folder, kind, command
        self.resumed = False
        self._lock = WritingLock(folder)
        self.guard = self._lock.guard  # around whatever makes something count; raises TakenOver
        self._made: list[Location] = []  # folders that were not there before, outermost first
        self._replaces_note = False  # of a crashed write that this one overwrites
        self._base: Base | None = None  # what this one adds to

    @property
    def generation(self) -> str:
        """The part of the names of its files that no other write has."""
        return self.note.generation

    @property
    def is_held(self) -> bool:
        """Whether the folder is this writer's, as far as is known."""
        return self._lock.held

    def begin(
        self,
        options: Mapping[str, Any],
        *,
        overwrite: bool,
        resume: bool,
        base: Base | None = None,
        allow_changes: bool | None = None,
    ) -> None:
        """Write the note, or take over the one that is there.

        `base`: the dataset that is added to. `allow_changes`: of the identity; None: there is no such option. Raises
        OutputExists, Locked where another writer is at work, or has changed `base`, BadConfig for other options, StorageError.
        """
        self._base = base
        if base is None:
            note = check_target(self.folder, overwrite=overwrite, resume=resume, kind=self.kind)
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
        except Locked:  # what is there is another writer's
            raise
        except BaseException:
            self.leave_no_trace()
            raise

    def _noted(self, generation: str, options: Mapping[str, Any], quarantine: int, changes: list[str]) -> WritingNote:
        return WritingNote.of_this_process(generation, options, quarantine, self._command, self.kind.noun, changes)

    def _begin_anew(self, options: Mapping[str, Any], there: bytes | None) -> None:
        self._replaces_note = there is not None
        files, commit = before = self._there()
        listed, is_new = paths_listed_in(commit), not (there or files or commit)
        named = (self.kind.data_path.fullmatch(path) for path in listed)
        taken = {*files, *(match["generation"] for match in named if match)}
        if self._base is not None:  # its identity is in the options; a repaired dataset may have listed such names before
            is_new = "repaired" not in self._base.manifest.provenance
        generation = self.kind.generation(options, taken, None if is_new else secrets.token_hex(8))
        self.note = self._noted(generation, options, next_number(self.folder), [])
        self._lock.acquire(self.note, instead_of=there)
        if self._there() != before or (self._base is not None and listed != self._base.paths):
            self._lock.release()
            raise meanwhile(self.folder)
        self._remove_parts()
        self._made += self.folder.join(DATA).make_folder()

    def _there(self) -> tuple[frozenset[str], bytes | None]:
        """Generations of the files in `data/`, and the commit."""
        return frozenset(shard_files(self.folder, self.kind)), whole_file(self.folder.join(self.kind.commit))

    def _take_up(self, note: WritingNote, there: bytes | None) -> None:
        self.note, self.resumed = note, True
        self._lock.acquire(note, instead_of=there)
        self._remove_parts()
        self.folder.join(DATA).make_folder()
        keep_names(self.folder.join(DATA))  # of shards that are to be adopted: their writer may have been killed before that
        self._remove_rejects(own=True)  # their rows will be seen, and set aside, again

    def _remove_parts(self) -> None:
        """Remove files that a killed writer left half written, and on S3 abort its uploads."""
        with self.guard():
            for child in filter(is_own_part, self.folder.children()):
                with suppress(StorageNotFound):  # that of another writer which is being refused
                    child.remove()
            if self.resumed or self._replaces_note:
                with suppress(StorageError):  # nothing depends on it, and not everybody who may write may list uploads
                    for upload in open_uploads(self.folder.join(DATA)):
                        upload.abort()

    def _remove_rejects(self, *, own: bool) -> None:
        """Rows that this write, or those before it, set aside."""
        for number, file in quarantine_files(self.folder).items():
            if (number >= self.note.first_quarantine) is own:
                file.remove()

    def own_files(self) -> list[Location]:
        """The complete files of this write, by number. Raises BadData where one is missing between others."""
        found = shard_files(self.folder, self.kind).get(self.generation, {})
        missing = min({*range(len(found))} - found.keys(), default=None)
        if missing is not None:
            what = f"shard {missing} is missing, later ones are there"
            raise BadData(what, where=self.folder.url, fix="write the dataset again, with --overwrite")
        return [file for _, file in sorted(found.items())]

    # ---- ends ----

    def finish(self) -> None:
        """Remove what the new manifest has replaced, and then the note: the dataset is committed.

        A reader with the older manifest is told (`Dataset`); it never reads other rows.
        """
        kept = frozenset() if self._base is None else self._base.paths
        older = (files for name, files in shard_files(self.folder, self.kind).items() if name != self.generation)
        replaced = [file for files in older for file in files.values() if f"{DATA}/{file.name}" not in kept]
        folders = [self.folder.join(name) for name in (DATA, QUARANTINE)]
        with self.guard():  # checked after the listing: none of these is another writer's
            for file in replaced:
                file.remove()
            if self._base is None:
                self._remove_rejects(own=False)
            keep_names(*folders)  # gone for good before the note is
            for folder in folders:
                folder.remove_empty_folder()
            self._lock.release()

    def leave(self) -> None:
        """End the write, so that it can be resumed at once; nothing where another writer has taken over."""
        if self._lock.held:
            self._lock.leave()

    def leave_no_trace(self) -> None:
        """Remove what this write made, if it has no complete shard; else `leave` it.

        Nothing where another writer has taken over: it may be about to write into a folder that is empty now.
        """
        if self._lock.lost:
            return
        if self._lock.held:
            if self._replaces_note or self.own_files():  # an interrupt may come right after the end of the first shard
                self.leave()
                return
            with self.guard():
                self._remove_rejects(own=True)
                self.folder.join(QUARANTINE).remove_empty_folder()
                self._lock.release()
        for folder in reversed(self._made):
            folder.remove_empty_folder()
