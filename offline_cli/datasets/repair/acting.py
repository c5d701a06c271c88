"""A plan carried out, under the writer's lock; refuses to begin where anything has changed since the plan was made.

Order: half-written files and uploads go; shards get the columns that later ones have; manifests that will not stand are copied
aside; the manifest; only then what is not part of the dataset moves to quarantine; the disk keeps all of that before the note
goes. Killed at any point, the folder is one that another repair, or `--resume`, goes on from.
"""

from __future__ import annotations

from offline_cli.datasets.repair.plan import Plan
from offline_cli.datasets.repair.survey import Survey, survey
from offline_cli.storage.layout import DATA, MANIFEST, QUARANTINE
from offline_cli.storage.lease import Changed, WritingLock
from offline_cli.storage.lease_record import WritingNote
from offline_cli.storage.moving import free_place, keep_moves, keep_names, set_aside
from offline_cli.storage.shard_sequence import ShardSequence
from offline_cli.storage.staging import write_whole
from offline_cli.storage.step_tables import EMPTY_INFOS_BYTES, with_empty_infos

__all__ = ["act"]


def act(plan: Plan) -> None:
    """Carry it out. Raises Changed where somebody was quicker, Locked, StorageError."""
    lock = WritingLock(plan.folder)
    lock.acquire(_note(plan.found, plan.command), instead_of=plan.found.note_bytes)
    try:
        if survey(plan.folder).files() != plan.found.files():
            raise Changed
        with lock.guard():
            _drop_half_written(plan.found, survey(plan.folder))
            _rewrite_manifest(plan, lock)
            for file in plan.aside:
                with lock.guard():
                    set_aside(file, plan.folder)
            keep_moves(plan.aside, plan.folder)
            keep_names(plan.folder.join(DATA))  # files without bytes have gone from it
            lock.release()
    finally:
        if lock.held and plan.found.note_bytes is not None:
            lock.leave()  # it says the same of the dataset as the one that it replaced
        elif lock.held:
            lock.release()


def _note(found: Survey, command: str) -> WritingNote:
    """Such that `--resume` can go on from it as from the one that is there."""
    before = found.note
    if before is None:
        return WritingNote.of_this_process("", {}, 0, command)
    return WritingNote.of_this_process(before.generation, before.options, before.first_quarantine, command)


def _drop_half_written(planned: Survey, now: Survey) -> None:
    """Of what was planned, what is still there: parts of a beat come and go."""
    there = {file.path for file in now.half_written}
    for file in planned.half_written:
        if file.path in there:
            file.remove()
    for upload in planned.uploads:
        upload.abort()


def _rewrite_manifest(plan: Plan, lock: WritingLock) -> None:
    if plan.kept_manifest is not None:
        return
    sequence = ShardSequence(plan.folder, "", compression=plan.known.compression, guard=lock.guard)
    examined = plan.examined
    for adopted in examined.sound:
        sequence.adopt(adopted.shard, adopted.schema)
    for number, schema in enumerate(sequence.schemas):
        if examined.rows.lacks(schema):
            sequence.rewrite(number, with_empty_infos, added=EMPTY_INFOS_BYTES)
    manifest = plan.manifest(tuple(sequence.finished))
    keep_names(plan.folder.join(DATA), plan.folder.join(QUARANTINE))  # whose writer may have been killed before that
    with lock.guard():  # shards may have taken long
        if plan.found.manifest_bytes is not None:
            copy = free_place(plan.folder, MANIFEST)
            plan.folder.join(QUARANTINE).make_folder()
            write_whole(copy, plan.found.manifest_bytes, folder=plan.folder)
        write_whole(plan.folder.join(MANIFEST), manifest.to_bytes(), folder=plan.folder)
