"""A copy of a dataset in a folder or bucket, byte by byte; the manifest comes last, and until then the copy is unfinished.

A shard gets its name only once it is whole, so that a resumed copy sends those that are missing.
"""

from __future__ import annotations

import shutil

from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.file_names import CARD, DATA, MANIFEST
from offline_cli.datasets.manifest import Shard
from offline_cli.datasets.ownership import data_files
from offline_cli.datasets.target_folder import TargetFolder
from offline_cli.errors import PROBLEM, BadData, Interrupted
from offline_cli.import_path import content_hash_of
from offline_cli.parquet.reading import FIX, OTHER_SHARD, fingerprint
from offline_cli.progress import OnProgress, Progress
from offline_cli.stop_signals import check
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.locations import BLOCK
from offline_cli.storage.staging import StagedFile, write_whole


def check_shard(dataset: Dataset, shard: Shard, sha256: str) -> None:
    """Raise BadData unless `sha256` is the manifest's."""
    if sha256 != shard.sha256:
        what, where = "the file is not the one that the manifest lists: its SHA-256 differs", dataset.location.join(shard.path)
        raise BadData(what, where=where.url, fix=FIX, details={PROBLEM: OTHER_SHARD})


def copy_to_folder(
    dataset: Dataset, card: str, writing: TargetFolder, *, overwrite: bool, resume: bool, on_progress: OnProgress
) -> list[Shard]:
    """Copy `dataset` with README.md `card`; the shards that were sent. Raises as `TargetFolder.begin` does, and BadData."""
    target, sent, shards = writing.folder, list[Shard](), dataset.manifest.shards
    content = content_hash_of([(shard.path, shard.sha256) for shard in shards])
    writing.begin({"publishes": content}, overwrite=overwrite, resume=resume)
    there = {f"{DATA}/{file.name}": file for file in data_files(target)}
    try:
        for number, shard in enumerate(shards):
            check()
            file = there.get(shard.path)
            if file is None or file.size() != shard.bytes or fingerprint(file)[1] != shard.sha256:
                _copy(dataset, shard, writing)  # takes the place of what is there only once it is whole
                sent.append(shard)
            on_progress(Progress("publishing", number + 1, len(shards), "shards"))
        with writing.guard():
            write_whole(target.join(CARD), card.encode(), folder=target)
            write_whole(target.join(MANIFEST), dataset.location.join(MANIFEST).read_bytes(), folder=target)
        writing.finish(frozenset(shard.path for shard in shards))
    except BaseException as error:
        if sent or writing.resumed:
            writing.leave()
            if isinstance(error, KeyboardInterrupt):
                fix = "run the same command with --resume to continue"
                raise Interrupted("interrupted; complete shards are kept", where=target.url, fix=fix) from error
        else:
            writing.leave_no_trace()
        raise
    return sent


def _copy(dataset: Dataset, shard: Shard, writing: TargetFolder) -> None:
    source, copy = dataset.location.join(shard.path), StagedFile(writing.folder.join(shard.path), folder=writing.folder)
    try:
        with source.open() as file, storage_failures(source.url, "reading it"):
            shutil.copyfileobj(file, copy, BLOCK)
        check_shard(dataset, shard, copy.sha256)
        with writing.guard():
            copy.commit()
    except BaseException:
        copy.discard()
        raise
