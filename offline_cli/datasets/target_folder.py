"""The folder being written into, from the first note to the last clean-up; nothing unasked for is touched.

Everything here said of datasets holds for train batches too: `FolderKind` (file_names.py) has the names that differ.

A folder with a note is uncommitted, whatever else is in it. Over an older dataset the note does not harm it: its manifest and
shards stay until the new manifest is written, and removing the note brings it back. The note is the lock that keeps a second
writer out (`lock.py`); whatever was checked before the lock was held is checked again after.

The 8 hex digits in a shard's name are a hash of format, options and the caller's word for what it writes, so that two runs of
one command name their shards alike, each in a folder of its own. Where something was written before (--overwrite), the hash is
salted at random: old and new shards exist side by side until the manifest changes, and no name is ever reused, under which a
reader with an older manifest would find other episodes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

from offline_cli.datasets.appending import Base, check_base, note_in, refuse_note_of_others
from offline_cli.datasets.file_names import DATA, DATASET, MANIFEST, QUARANTINE, UNFINISHED_WRITING, WRITING, FolderKind
from offline_cli.datasets.lock import Changed, WritingLock, WritingNote, unlock
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.ownership import (
    all_but_parts,
    is_own_part,
    keep_names,
    listed_paths,
    next_number,
    numbered,
    quarantine_files,
    refuse_foreign,
    refuse_links,
)
from offline_cli.errors import BadData, Locked, OutputExists, StorageError, UsageError
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file
from offline_cli.storage.uploads import open_uploads

__all__ = ["REPAIRED_FIX", "TargetFolder", "check_apart", "check_target", "exclusive"]

TRIES: Final = 10  # tries to begin in a folder where others begin and end meanwhile
REPAIRED: Final = "repaired"  # in a manifest's provenance: what `repair` did
REPAIRED_FIX: Final = "write what is missing to another --out, or everything again with --overwrite"


def check_apart(places: Sequence[Location], target: Location) -> None:
    """Raise UsageError for a target inside one of the sources: it would be a part of that source the next time."""
    for place in places:
        if place.fs == target.fs and target.path.startswith(place.path.rstrip("/") + "/"):
            raise UsageError("the output lies inside the source", where=target.url, fix="give an --out beside the source")


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
    if not folder.exists():
        folder.check_writable()
        return None
    if overwrite or resume:
        refuse_links(folder, kind)
    if force_unlock:
        unlock(folder)
    note = note_in(folder, needed=resume)
    if note is not None:
        refuse_note_of_others(note, folder, kind)
    kept = note or (_unfinished(folder) if resume else None)
    if resume and kept is not None:
        refuse_foreign(folder, kind, has_note=True)
    elif overwrite:
        refuse_foreign(folder, kind, has_note=note is not None)
    elif all_but_parts(folder):
        raise _exists(folder, kind, resume=resume)
    folder.check_writable()
    return kept if resume else None


def exclusive(url: str, noun: str) -> UsageError:
    """The error for a call with both `resume` and `overwrite`."""
    fix = f"--resume to resume the {noun}, or --overwrite to begin it again"
    return UsageError("--resume and --overwrite are mutually exclusive", where=url, fix=fix)


def _unfinished(folder: Location) -> WritingNote | None:
    """The note of a writer that committed what it had, before all that was asked for was in it."""
    place = folder.join(MANIFEST)
    if not place.exists():
        return None
    found = Manifest.read(folder)
    kept = found.provenance.get(UNFINISHED_WRITING)
    if found.complete or kept is None:
        return None
    environment = found.environment and found.environment.as_json()
    return WritingNote.of_manifest(kept, environment, where=f"{place.url}, {UNFINISHED_WRITING}")


def _exists(folder: Location, kind: FolderKind, *, resume: bool) -> OutputExists:
    where, go_on = folder.url, "--resume to continue it, " if kind.resumable else ""
    if folder.join(WRITING).exists():
        fix = f"{go_on}--overwrite to begin again, or another --out"
        return OutputExists(f"an unfinished {kind.noun} is here", where=where, fix=fix)
    if not folder.join(kind.commit).exists():
        return OutputExists(f"the folder is not empty, and holds no {kind.noun}", where=where, fix="give another --out")
    if kind.resumable and not resume and _unfinished(folder) is not None:
        fix = f"{go_on}--overwrite to replace it, or another --out"
        return OutputExists(f"a {kind.noun} is here that was committed before it was complete", where=where, fix=fix)
    if resume and kind.resumable and not Manifest.read(folder).complete:
        what = f"the {kind.noun} here is not complete, and nothing in it says how to continue: it was repaired"
        return OutputExists(what, where=where, fix=REPAIRED_FIX)
    if resume:
        fix = "the command that wrote it has nothing left to do; for another one: --overwrite to replace it, or another --out"
        return OutputExists(f"the {kind.noun} here is complete", where=where, fix=fix)
    return OutputExists(f"a {kind.noun} is here already", where=where, fix="--overwrite to replace it, or another --out")


def _shards(folder: Location, kind: FolderKind) -> dict[str, dict[int, Location]]:
    """Every shard file below `folder`, listed or not: generation -> number -> place."""
    data = folder.join(DATA)
    found: dict[str, dict[int, Location]] = {}
    for file in data.files() if data.exists() else []:
        if match := numbered(file, folder, kind):
            found.setdefault(match["generation"], {})[int(match["number"])] = file
    return found


class TargetFolder:
    """One write; `begin`, then either `finish` (after the manifest), `leave` or `leave_no_trace`."""

    def __init__(self, folder: Location, command: str, kind: FolderKind = DATASET) -> None:
        """`command`: what writes, without secrets."""
        self.folder = folder
        self.kind = kind
        self._command = command
        self.generation = ""
        self.resumed = False
        self.changes: list[str] = []  # of the identity since the write began, in words
        self._lock = WritingLock(folder)
        self._first_quarantine = 0
        self._made: list[Location] = []  # folders that were not there before, outermost first
        self._note_before: bytes | None = None  # of a crashed write that this one overwrites
        self._salt = secrets.token_hex(8)
        self._base: Base | None = None  # what this one adds to

    # ---- beginning ----

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
        for _ in range(TRIES):
            if base is None:
                note = check_target(self.folder, overwrite=overwrite, resume=resume, kind=self.kind)
            else:
                note = check_base(self.folder, resume=resume)
            if note is not None:
                self.changes = [*note.changes, *note.changes_to(options, self.folder, allow_changes)]
            try:
                if note is None:
                    self._begin_anew(options, overwrite=overwrite)
                else:
                    self._take_up(note, options)
            except Changed:
                continue
            return
        what = "other writers began and ended here, again and again"
        raise Locked(what, where=self.folder.url, fix="the same command again, when they are done")

    def _begin_anew(self, options: Mapping[str, Any], *, overwrite: bool) -> None:
        self._note_before = whole_file(self.folder.join(WRITING)) if overwrite else None
        self._made += self.folder.make_folder()
        try:
            self._choose_names(options, overwrite=overwrite)
            self._lock.acquire(self.note(options), instead_of=self._note_before)
            if self._base is not None:
                self._refuse_changed(self._base)
            elif not overwrite and (self.folder.join(self.kind.commit).exists() or _shards(self.folder, self.kind)):
                self._lock.release()
                raise Changed  # a whole write has taken place since `check_target`
            if self._choose_names(options, overwrite=overwrite):
                self._lock.rewrite(generation=self.generation, first_quarantine=self._first_quarantine)
            self._remove_parts()
            self._made += self.folder.join(DATA).make_folder()
        except (Changed, Locked):  # what is there is another writer's
            raise
        except BaseException:
            self.leave_no_trace()
            raise

    def _refuse_changed(self, base: Base) -> None:
        """Raise Locked where the dataset is not the one that was read before the lock was held."""
        if listed_paths(self.folder, self.kind) != base.paths:
            self._lock.release()
            what = "another writer has changed the dataset since this command read it"
            raise Locked(what, where=self.folder.url, fix="run the same command again: it adds to what is there now")

    def _choose_names(self, options: Mapping[str, Any], *, overwrite: bool) -> bool:
        """Choose names that no file of the folder has, or has had; whether they are others than before."""
        before = self.generation, self._first_quarantine
        taken = set(_shards(self.folder, self.kind))
        is_new = True
        if overwrite:
            listed = (self.kind.data_path.fullmatch(path) for path in listed_paths(self.folder, self.kind))
            taken |= {match["generation"] for match in listed if match}
            is_new = not (taken or self._note_before or self.folder.join(self.kind.commit).exists())
        elif self._base is not None:  # its identity is in the options; a repaired dataset may have listed such names before
            taken |= self._base.generations
            is_new = REPAIRED not in self._base.manifest.provenance
        self.generation = self.kind.generation(options, taken, None if is_new else self._salt)
        self._first_quarantine = next_number(self.folder)
        return (self.generation, self._first_quarantine) != before

    def _take_up(self, note: WritingNote, options: Mapping[str, Any]) -> None:
        before = whole_file(self.folder.join(WRITING))
        if before is not None and WritingNote.of_bytes(before, where=self.folder.url) != note:
            raise Changed
        self.generation, self._first_quarantine = note.generation, note.first_quarantine
        self._lock.acquire(self.note(options), instead_of=before)
        self.resumed = True
        self._remove_parts()
        self.folder.join(DATA).make_folder()
        keep_names(self.folder.join(DATA))  # of shards that are to be adopted: their writer may have been killed before that
        self._remove_own_rejects()  # their rows will be seen, and set aside, again

    def _remove_parts(self) -> None:
        """Remove files that a killed writer left half written, and on S3 abort its uploads."""
        with self._lock.guard():
            for child in self.folder.children():
                if is_own_part(child):
                    child.remove()
            if self.resumed or self._note_before is not None:
                with suppress(StorageError):  # nothing depends on it, and not everybody who may write may list uploads
                    for upload in open_uploads(self.folder.join(DATA)):
                        upload.abort()

    def _remove_own_rejects(self) -> None:
        for number, file in quarantine_files(self.folder).items():
            if number >= self._first_quarantine:
                file.remove()

    def note(self, options: Mapping[str, Any]) -> WritingNote:
        """The note of this write: also what a manifest keeps of one that is committed before it is complete."""
        given = self._first_quarantine, self._command, self.kind, self.changes
        return WritingNote.of_this_process(self.generation, options, *given)

    def own_shards(self) -> list[Location]:
        """The complete shards of this write, in order. Raises BadData where one is missing between others."""
        found = self.own_files()
        for number, file in enumerate(found):
            match = numbered(file, self.folder, self.kind)
            if match is None or int(match["number"]) != number:
                what = f"shard {number} is missing, later ones are there"
                raise BadData(what, where=self.folder.url, fix="write the dataset again, with --overwrite")
        return found

    def own_files(self) -> list[Location]:
        """The complete files of this write, by number, whichever are there."""
        return [file for _, file in sorted(_shards(self.folder, self.kind).get(self.generation, {}).items())]

    # ---- meanwhile ----

    @property
    def is_held(self) -> bool:
        """Whether the folder is this writer's, as far as is known."""
        return self._lock.held

    def guard(self) -> AbstractContextManager[None]:
        """Around whatever makes something count. Raises TakenOver where another writer has taken over."""
        return self._lock.guard()

    def check(self) -> None:
        """Raise TakenOver where it is known by now that another writer has taken over."""
        self._lock.check()

    # ---- ends ----

    def finish(self) -> None:
        """Remove what the new manifest has replaced, and then the note: the dataset is committed.

        A reader with the older manifest is told (`Dataset`); it never reads other rows.
        """
        replaced = [*self._old_shards()]
        if self._base is None:
            replaced += [file for number, file in quarantine_files(self.folder).items() if number < self._first_quarantine]
        folders = [self.folder.join(name) for name in (DATA, QUARANTINE)]
        with self._lock.guard():  # checked after the listing: none of these is another writer's
            for file in replaced:
                file.remove()
            keep_names(*folders)  # gone for good before the note is
            for folder in folders:
                folder.remove_empty_folder()
            self._lock.release()

    def _old_shards(self) -> Iterator[Location]:
        """Those in `data/` of another write, but for the ones that are added to."""
        kept = frozenset() if self._base is None else self._base.paths
        for generation, shards in _shards(self.folder, self.kind).items():
            if generation != self.generation:
                yield from (file for file in shards.values() if f"{DATA}/{file.name}" not in kept)

    def leave(self) -> None:
        """End the write, so that it can be resumed at once; nothing where another writer has taken over."""
        if self._lock.held:
            self._lock.leave()

    def leave_no_trace(self) -> None:
        """Put everything back as it was before `begin`; for a write that has no complete shard. Where an interrupt came between
        the end of one and the moment in which its writer knew, `leave` it.

        Nothing where another writer has taken over: it may be about to write into a folder that is empty now.
        """
        if self._lock.is_lost:
            return
        if self._lock.held:
            if self.generation in _shards(self.folder, self.kind):
                self.leave()
                return
            with self._lock.guard():
                self._remove_own_rejects()
                self.folder.join(QUARANTINE).remove_empty_folder()
                if self._note_before is None:
                    self._lock.release()
                else:
                    self._lock.restore(self._note_before)
        for folder in reversed(self._made):
            folder.remove_empty_folder()
