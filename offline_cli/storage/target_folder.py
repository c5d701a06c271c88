"""The folder that a dataset is being written into, from the first note to the last clean-up; refuses to touch anything unasked.

A folder with a note is uncommitted, whatever else is in it. Over an older dataset the note does not harm it: its manifest and
shards stay until the new manifest is written, and removing the note brings it back.

The 8 hex digits in a shard's name are a hash of format, options and the caller's word for what it writes, so that two runs of
one command name their shards alike. Where `data/` holds shards of that name already (--overwrite with the same options), the
hash is salted with 1, 2, ... until it is new: old and new shards stand side by side until the manifest changes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from typing import Any, Final

from offline_cli.errors import BadData, OutputExists
from offline_cli.storage.layout import DATA, MANIFEST, PART_PREFIX, QUARANTINE, SHARD_PATH, WRITING
from offline_cli.storage.locations import Location
from offline_cli.storage.manifest import Manifest
from offline_cli.storage.quarantine import next_number, quarantine_files
from offline_cli.storage.staging import write_whole
from offline_cli.storage.writing_note import WritingNote

__all__ = ["UNFINISHED_WRITING", "TargetFolder", "check_target"]

UNFINISHED_WRITING: Final = "unfinished"  # in a manifest's provenance: the note to go on from


def check_target(folder: Location, *, overwrite: bool = False, resume: bool = False) -> WritingNote | None:
    """The note to go on from, with `resume`; None where writing begins anew. Raises OutputExists where it may not.

    Nothing is changed. `resume` where nothing was begun begins; `overwrite` replaces a dataset, never foreign files.
    """
    if folder.is_file():
        raise OutputExists("a file is here; a dataset is a folder", where=folder.url, fix="give another --out")
    if not folder.exists():
        return None
    note = _note(folder, needed=resume) or (_unfinished(folder) if resume else None)
    if note is not None and (resume or overwrite):
        note.refuse_if_alive(folder)
    if resume and note is not None:
        return note
    if overwrite:
        _refuse_foreign_folder(folder)
        _refuse_foreign_data(folder)
    elif folder.children():
        raise _exists(folder, resume=resume)
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


def _exists(folder: Location, *, resume: bool) -> OutputExists:
    if folder.join(WRITING).exists():
        fix = "--resume to go on with it, --overwrite to begin again, or another --out"
        return OutputExists("an unfinished dataset is here", where=folder.url, fix=fix)
    if not folder.join(MANIFEST).exists():
        return OutputExists("the folder is not empty, and holds no dataset", where=folder.url, fix="give another --out")
    if not resume and _unfinished(folder) is not None:
        fix = "--resume to go on with it, --overwrite to replace it, or another --out"
        return OutputExists("a dataset is here that was committed before it was complete", where=folder.url, fix=fix)
    if resume:
        fix = "nothing is left to do; --overwrite writes it again"
        return OutputExists("the dataset here is complete", where=folder.url, fix=fix)
    return OutputExists("a dataset is here already", where=folder.url, fix="--overwrite to replace it, or another --out")


def _refuse_foreign_folder(folder: Location) -> None:
    """What holds neither manifest nor note is no dataset, except for what a killed writer of ours may leave."""
    if folder.join(MANIFEST).exists() or folder.join(WRITING).exists():
        return
    ours = (DATA, QUARANTINE)
    foreign = [child for child in folder.children() if child.name not in ours and not child.name.startswith(PART_PREFIX)]
    if foreign:
        what = f"the folder holds no dataset, and --overwrite replaces nothing else; {foreign[0].name} is in it"
        raise OutputExists(what, where=folder.url, fix="give another --out")


def _refuse_foreign_data(folder: Location) -> None:
    data = folder.join(DATA)
    foreign = [file.url for file in data.files() if not _shard(file)] if data.exists() else []
    if foreign:
        what = f"data/ holds {len(foreign)} files that no dataset put there, such as {foreign[0]}"
        raise OutputExists(what, where=folder.url, fix="move them away, or give another --out")


def _shard(file: Location) -> Any:
    return SHARD_PATH.fullmatch(f"{DATA}/{file.name}")


def _shards(folder: Location) -> dict[str, dict[int, Location]]:
    """Every shard file below `folder`, listed or not: generation -> number -> place."""
    data = folder.join(DATA)
    found: dict[str, dict[int, Location]] = {}
    for file in data.files() if data.exists() else []:
        if match := _shard(file):
            found.setdefault(match["generation"], {})[int(match["number"])] = file
    return found


def _new_generation(options: Mapping[str, Any], taken: set[str]) -> str:
    """8 hex digits from the options. Where the data comes from is left out: one content has one name, wherever it lay."""
    named = {name: value for name, value in options.items() if name != "identity"}
    hashes = (hashlib.sha256(json.dumps([named, salt], sort_keys=True).encode()) for salt in itertools.count())
    return next(name for digest in hashes if (name := digest.hexdigest()[:8]) not in taken)


class TargetFolder:
    """One writing; `begin`, then either `finish` (after the manifest) or `leave_no_trace`, or neither (the note stays)."""

    def __init__(self, folder: Location) -> None:
        self.folder = folder
        self.generation = ""
        self.resumed = False
        self._first_quarantine = 0
        self._made: list[Location] = []  # folders that were not there before, outermost first
        self._note_before: bytes | None = None  # of a crashed writing that this one overwrites

    def begin(self, options: Mapping[str, Any], *, overwrite: bool, resume: bool) -> None:
        """Write the note, or take up the one that is there. Raises OutputExists, BadConfig for other options, StorageError."""
        note = check_target(self.folder, overwrite=overwrite, resume=resume)
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
        self.generation = _new_generation(options, set(_shards(self.folder)))
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
        found = _shards(self.folder).get(self.generation, {})
        for number in range(len(found)):
            if number not in found:
                what = f"shard {number} is missing, later ones are there"
                raise BadData(what, where=self.folder.url, fix="write the dataset again, with --overwrite")
        return [found[number] for number in sorted(found)]

    def finish(self) -> None:
        """Remove what the new manifest has replaced, and then the note: the dataset is committed."""
        for generation, shards in _shards(self.folder).items():
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
