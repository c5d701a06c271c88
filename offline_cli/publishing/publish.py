"""Publishes a dataset: to a repository of the Hugging Face Hub in one commit, or as a copy in a folder or bucket.

What others get are the shards of the manifest, the manifest and the card; nothing else that lies in the folder.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from offline_cli.checked_keywords import checked
from offline_cli.datasets.card import MARK, body_of, card_of
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.file_names import CARD
from offline_cli.datasets.ownership import is_regular
from offline_cli.datasets.target_folder import TargetFolder, check_target
from offline_cli.errors import MissingPackage, OfflineCliError, UsageError
from offline_cli.parquet.reading import fingerprint
from offline_cli.progress import OnProgress, no_progress
from offline_cli.publishing.copying import check_shard, copy_to_folder
from offline_cli.storage.blanking import blanked, this_command
from offline_cli.storage.locations import Location, open_location

__all__ = ["PublishResult", "publish"]

REPOSITORY: Final = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)/?", re.ASCII)
LICENSE: Final = re.compile(r"[a-z0-9][a-z0-9.+-]*", re.ASCII)  # as Hugging Face calls them
HUB_ONLY: Final = (
    "bsd",
    "c-uda",
    "cc",
    "gfdl",
    "gpl",
    "lgpl",
    "odbl",
    "odc-by",
    "openrail",
    "other",
    "pddl",
    "unknown",
)  # not SPDX
LICENSED: Final = re.compile(r"^license:[ \t]*[\"']?([\w.+-]+)", re.MULTILINE)
LICENSE_FIX: Final = "--license cc-by-4.0, or cc0-1.0, mit, apache-2.0, ...; --license other where none of them fits"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What was published or, of a dry run, would be."""

    dataset: str
    to: str  # with the new commit, of the Hub
    page: str | None  # for a browser, of the Hub
    private: bool | None  # None: not of the Hub
    license: str | None  # that the card names
    shards: int
    bytes: int  # of the shards
    new_shards: int  # that were not there before
    new_bytes: int
    episodes: int
    steps: int
    complete: bool  # as the manifest says
    dry_run: bool
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        return asdict(self)


@checked
def publish(
    dataset: str | os.PathLike[str] | Location | Dataset,
    to: str,
    *,
    license: str | None = None,
    private: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    force_unlock: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> PublishResult:
    """Copy `dataset`, a committed one of ours, to `to`: hf://datasets/OWNER/NAME, a folder, or the URL of one.

    The Hub gets one commit; a broken upload continues by itself, as the Hub keeps what arrived. Any other place gets the
    manifest last, and `resume` continues a broken copy. `license`: as Hugging Face calls it; the Hub's card needs one, from
    here or from a README.md of the user's. `private`: of a new repository. `command`: for the note in an unfinished copy.

    Raises UsageError, NoData, Uncommitted; BadData for a shard that is not the manifest's; OutputExists for a place with other
    content; BadConfig for a card that the Hub refuses; MissingPackage for its client; Locked, StorageError; Interrupted.
    """
    began, to, known = time.monotonic(), os.fspath(to), dataset.location if isinstance(dataset, Dataset) else dataset
    place = open_location(known, storage_options)
    found = dataset if isinstance(dataset, Dataset) else Dataset.open(place)
    shards = found.manifest.shards
    name = _repository_of(to, private=private)
    card, license = _card(found, license, name)
    page = is_private = None
    for shard in shards if dry_run else ():
        check_shard(found, shard, fingerprint(place.join(shard.path))[1])
    if name is None:
        _check_known(license)
        target, new = open_location(to, storage_options), shards
        if target.is_at(place):
            raise UsageError("this is the dataset itself, or inside it", where=target.url, fix="name another place with --to")
        to, how = target.url, dict[str, Any](overwrite=overwrite, resume=resume)
        try:
            check_target(target, force_unlock=force_unlock, **how)
            if not dry_run:
                writing = TargetFolder(target, shlex.join(command) if command else this_command())
                new = tuple(copy_to_folder(found, card, writing, on_progress=on_progress, **how))
        except OfflineCliError as error:
            error.fix = error.fix.replace("--out", "--to")
            raise
    else:
        repository = _hub().Repository(name, storage_options, is_shared=not place.is_local)
        repository.check(found, private=private, overwrite=overwrite, dry_run=dry_run)
        new = tuple(filter(repository.lacks, shards))
        page, to, is_private = repository.page, repository.url, private or bool(repository.is_private)
        if not dry_run:
            to += f"@{repository.publish(found, card, new, private=private, on_progress=on_progress)}"
    sizes, counts = [sum(shard.bytes for shard in some) for some in (shards, new)], found.manifest.counts
    what = (place.url, to, page, is_private, license, len(shards), sizes[0], len(new), sizes[1], counts.episodes, counts.steps)
    return PublishResult(*what, found.manifest.complete, dry_run, time.monotonic() - began)


def _hub() -> Any:
    try:
        from offline_cli.publishing import hub
    except ImportError as error:
        fix = "pip install 'offline-cli[hub]'"
        raise MissingPackage(f"the Hub's client cannot be imported: {error}", where="hf://", fix=fix) from error
    return hub


def _repository_of(to: str, *, private: bool) -> str | None:
    """OWNER/NAME; None for a place that is not the Hub's. Raises UsageError."""
    match, where = REPOSITORY.fullmatch(to), f"--to {blanked(to)}"
    if match is None and to.startswith("hf:"):
        fix = "--to hf://datasets/OWNER/NAME; nothing stands behind it"
        raise UsageError("this is no dataset repository of the Hub", where=where, fix=fix)
    if match is None and private:
        raise UsageError("--private is for the Hub", where=where, fix="leave it out: the bucket says who may read it")
    return None if match is None else match[1]


def _card(dataset: Dataset, license: str | None, repository: str | None) -> tuple[str, str | None]:
    """README.md, ours or the user's as it is, and the licence that it names. Raises UsageError without one, or for another."""
    if license is not None and not LICENSE.fullmatch(license := license.lower()):
        raise UsageError(f"{license!r} is not the short name of a licence", where="--license", fix=LICENSE_FIX)
    place = dataset.location.join(CARD)
    theirs = place.read_bytes().decode("utf-8", "replace") if is_regular(place) else MARK
    if MARK not in theirs:
        named = LICENSED.search(theirs.removesuffix(body_of(theirs)))
        said = named[1] if named else None
        if license not in (None, said) or (repository and said is None):
            fix = (
                f"write license: {license or 'cc-by-4.0'} in its header, between two lines of ---; or remove it, and get a card"
            )
            raise UsageError(f"README.md is yours, and names {said or 'no licence'}", where=place.url, fix=fix)
        return theirs, said
    if repository and license is None:
        raise UsageError("no licence is named, which says what others may do", where="--license", fix=LICENSE_FIX)
    return card_of(dataset.location, dataset.manifest, license=license, repository=repository), license


def _check_known(license: str | None) -> None:
    """Log a note if there is no licence, or neither SPDX nor the Hub has this name. The Hub itself checks what it gets."""
    if license is None:
        _log.warning("note: no licence is named, which says what others may do: %s", LICENSE_FIX)
    elif license.lower() not in HUB_ONLY:
        try:
            canonicalize_license_expression(license)
        except InvalidLicenseExpression:
            _log.warning("note: %r is not a known short name of a licence: %s", license, LICENSE_FIX)
