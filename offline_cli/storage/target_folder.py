"""The folder that is being written into, from the first note to the last clean-up; refuses to touch anything unasked.

What is said here of datasets holds for train batches too: `FolderKind` (layout.py) has the names that differ.

A folder with a note is uncommitted, whatever else is in it. Over an older dataset the note does not harm it: its manifest and
shards stay until the new manifest is written, and removing the note brings it back.

The 8 hex digits in a shard's name are a hash of format, options and the caller's word for what it writes, so that two runs of
one command name their shards alike. Where `data/` holds shards of that name already (--overwrite with the same options), the
hash is salted with 1, 2, ... until it is new: old and new shards stand side by side until the manifest changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from offline_cli.errors import BadData, OutputExists, UsageError
from offline_cli.storage.layout import DATA, DATASET, MANIFEST, PART_PREFIX, QUARANTINE, WRITING, FolderKind
from offline_cli.storage.locations import Location
from offline_cli.storage.manifest import Manifest
from offline_cli.storage.quarantine import next_number, quarantine_files
from offline_cli.storage.staging import write_whole
from offline_cli.storage.writing_note import WritingNote

__all__ = ["UNFINISHED_WRITING", "TargetFolder", "check_apart", "check_target"]

UNFINISHED_WRITING: Final = "unfinished"  # in a manifest's provenance: the note to go on from


def check_apart(places: Sequence[Location], target: Location) -> None:
    """Raise UsageError for a target inside one of the sources: it would be a part of that source the next time."""
    for place in places:
        if place.fs == target.fs and target.path.startswith(place.path.rstrip("/") + "/"):
            raise UsageError("the output lies inside the source", where=target.url, fix="give an --out beside the source")


def check_target(
    folder: Location, *, overwrite: bool = False, resume: bool = False, kind: FolderKind = DATASET
) -> WritingNote | None:
    """The note to go on from, with `resume`; None where writing begins anew. Raises OutputExists where it may not.

    Nothing is changed. `resume` where nothing was begun begins; `overwrite` replaces a dataset, never foreign files.
    """
    if folder.is_file():
        raise OutputExists(f"a file is here; a {kind.noun} is a folder", where=folder.url, fix="give another --out")
    if not folder.exists():
        return None
    note = _note(folder, needed=resume) or (_unfinished(folder) if resume else None)
    if note is not None and (resume or overwrite):
        note.refuse_if_alive(folder)
    if resume and note is not None:
        return note
    if overwrite:
        _refuse_foreign_folder(folder, kind)
        _refuse_foreign_data(folder, kind)
    elif folder.children():
        raise _exists(folder, kind, resume=resume)
    return None


def _note(folder: Location, *, needed: bool) -> WritingNote | None:
    try:
        return WritingNote.read(folder)
    except BadData:
        if needed:
            raise
        return None


def _unfinished(folder: Location) -> WritingNote | None:
    """The note of a writer that committed what it had, before all that was asked for was in it."""
    place = folder.join(MANIFEST)
    if not place.exists():
        return None
    found = Manifest.from_bytes(place.read_bytes(), where=place.url)
    kept = found.provenance.get(UNFINISHED_WRITING)
    return None if found.complete or kept is None else WritingNote.of_document(kept, where=f"{place.url}, {UNFINISHED_WRITING}")


def _exists(folder: Location, kind: FolderKind, *, resume: bool) -> OutputExists:
    where, go_on = folder.url, "--resume to go on with it, " if kind.resumable else ""
    if folder.join(WRITING).exists():
        fix = f"{go_on}--overwrite to begin again, or another --out"
        return OutputExists(f"an unfinished {kind.noun} is here", where=where, fix=fix)
    if not folder.join(kind.commit).exists():
        return OutputExists(f"the folder is not empty, and holds no {kind.noun}", where=where, fix="give another --out")
    if kind.resumable and not resume and _unfinished(folder) is not None:
        fix = f"{go_on}--overwrite to replace it, or another --out"
        return OutputExists(f"a {kind.noun} is here that was committed before it was complete", where=where, fix=fix)
    if resume:
        fix = "nothing is left to do; --overwrite writes it again"
        return OutputExists(f"the {kind.noun} here is complete", where=where, fix=fix)
    return OutputExists(f"a {kind.noun} is here already", where=where, fix="--overwrite to replace it, or another --out")


def _refuse_foreign_folder(folder: Location, kind: FolderKind) -> None:
    """What holds neither commit nor note is none of ours, except for what a killed writer of ours may leave."""
    if folder.join(kind.commit).exists() or folder.join(WRITING).exists():
        return
    ours = (DATA, QUARANTINE)
    foreign = [child for child in folder.children() if child.name not in ours and not child.name.startswith(PART_PREFIX)]
    if foreign:
        what = f"the folder holds no {kind.noun}, and --overwrite replaces nothing else; {foreign[0].name} is in it"
        raise OutputExists(what, where=folder.url, fix="give another --out")


def _refuse_foreign_data(folder: Location, kind: FolderKind) -> None:
    data = folder.join(DATA)
    foreign = [file.url for file in data.files() if not _numbered(file, kind)] if data.exists() else []
    if foreign:
        what = f"data/ holds {len(foreign)} files that no {kind.noun} put there, such as {foreign[0]}"
        raise OutputExists(what, where=folder.url, fix="move them away, or give another --out")


def _numbered(file: Location, kind: FolderKind) -> Any:
    return kind.data_path.fullmatch(f"{DATA}/{file.name}")


def _shards(folder: Location, kind: FolderKind) -> dict[str, dict[int, Location]]:
    """Every shard file below `folder`, listed or not: generation -> number -> place."""
    data = folder.join(DATA)
    found: dict[str, dict[int, Location]] = {}
    for file in data.files() if data.exists() else []:
        if match := _numbered(file, kind):
            found.setdefault(match["generation"], {})[int(match["number"])] = file
    return found


class TargetFolder:
    """One writing; `begin`, then either `finish` (after the manifest) or `leave_no_trace`, or neither (the note stays)."""

    def __init__(self, folder: Location, kind: FolderKind = DATASET) -> None:
        self.folder = folder
        self.kind = kind
        self.generation = ""
        self.resumed = False
        self._first_quarantine = 0
        self._made: list[Location] = []  # folders that were not there before, outermost first
        self._note_before: bytes | None = None  # of a crashed writing that this one overwrites

    def begin(self, options: Mapping[str, Any], *, overwrite: bool, resume: bool) -> None:
        """Write the note, or take up the one that is there. Raises OutputExists, BadConfig for other options, StorageError."""
        note = check_target(self.folder, overwrite=overwrite, resume=resume, kind=self.kind)
        if note is not None:
            note.refuse_other_options(options, self.folder)
        _remove_parts(self.folder)
        if note is None:
            self._begin_anew(options)
        else:
            self._take_up(note, options)

    def _begin_anew(self, options: Mapping[str, Any]) -> None:
        place = self.folder.join(WRITING)
        self._note_before = place.read_bytes() if place.exists() else None
        taken = _shards(self.folder, self.kind)
        self.generation = next(name for name in self.kind.generations(options) if name not in taken)
        self._first_quarantine = next_number(self.folder)
        self._made = self.folder.make_folder()
        try:
            self._write_note(options)
            self._made += self.folder.join(DATA).make_folder()
        except BaseException:
            self.leave_no_trace()
            raise

    def _take_up(self, note: WritingNote, options: Mapping[str, Any]) -> None:
        self.resumed = True
        self.generation, self._first_quarantine = note.generation, note.first_quarantine
        self._write_note(options)
        self.folder.join(DATA).make_folder()
        for number, file in quarantine_files(self.folder).items():  # its rows will be met, and set aside, again
            if number >= self._first_quarantine:
                file.remove()

    def _write_note(self, options: Mapping[str, Any]) -> None:
        self.note(options).write(self.folder)

    def note(self, options: Mapping[str, Any]) -> WritingNote:
        """The note of this writing: also what a manifest keeps of one that is committed before it is complete."""
        return WritingNote.of_this_process(self.generation, options, self._first_quarantine)

    def own_shards(self) -> list[Location]:
        """The complete shards of this writing, in order. Raises BadData where one is missing between others."""
        found = _shards(self.folder, self.kind).get(self.generation, {})
        for number in range(len(found)):
            if number not in found:
                what = f"shard {number} is missing, later ones are there"
                raise BadData(what, where=self.folder.url, fix="write the dataset again, with --overwrite")
        return [found[number] for number in sorted(found)]

    def finish(self) -> None:
        """Remove what the new manifest has replaced, and then the note: the dataset is committed."""
        for generation, shards in _shards(self.folder, self.kind).items():
            if generation != self.generation:
                for file in shards.values():
                    file.remove()
        for number, file in quarantine_files(self.folder).items():
            if number < self._first_quarantine:
                file.remove()
        for name in (DATA, QUARANTINE):
            self.folder.join(name).remove_empty_folder()
        self.folder.join(WRITING).remove()

    def leave_no_trace(self) -> None:
        """Put everything back as it was before `begin`; for a writing that has no complete shard."""
        for number, file in quarantine_files(self.folder).items():
            if number >= self._first_quarantine:
                file.remove()
        self.folder.join(QUARANTINE).remove_empty_folder()
        if self._note_before is None:
            self.folder.join(WRITING).remove()
        else:
            write_whole(self.folder.join(WRITING), self._note_before, folder=self.folder)
        for folder in reversed(self._made):
            folder.remove_empty_folder()


def _remove_parts(folder: Location) -> None:
    """Remove local files that a killed writer left half written."""
    for child in folder.children():
        if child.name.startswith(PART_PREFIX):
            child.remove()
