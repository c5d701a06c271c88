"""A dataset repository of the Hugging Face Hub: everything in one commit, by `huggingface_hub`, with its own credentials.

Shards go first (`preupload_lfs_files`). The Hub keeps what arrived, and is asked for it before each upload: so a broken one
continues. Then one `create_commit` makes all visible at once. It names the commit that was looked at, so that the Hub refuses
it where somebody else has committed meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, HfFileSystem
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # it is documented there

from offline_cli.datasets.card import MARK, body_of
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.file_names import CARD, DATA, MANIFEST, SHARD_PATH
from offline_cli.datasets.manifest import Shard
from offline_cli.errors import BadConfig, Locked, OutputExists, UsageError
from offline_cli.progress import OnProgress, Progress
from offline_cli.publishing.copying import check_shard
from offline_cli.stop_signals import check
from offline_cli.storage.failures import REQUEST_BYTES, SECONDS, asked
from offline_cli.storage.filesystems import quiet_clients
from offline_cli.storage.providers import TIME_LIMIT

AT_ONCE: Final = 8  # shards that are sent before the next look at signals
IN_MEMORY: Final = 16 << 20  # bytes of a remote shard: small ones may go with the commit, when it is closed again
SENT: Final = "what was uploaded is not sent again"
T = TypeVar("T")

_log = logging.getLogger(__name__)


class Repository:
    """OWNER/NAME, as it is now."""

    def __init__(self, name: str, options: Mapping[str, Any] | None, *, is_shared: bool) -> None:
        """`is_shared`: some options are for the storage of the dataset.

        Raises StorageError; UsageError for an option that the client does not accept.
        """
        quiet_clients()
        disable_progress_bars()
        self.name, self.url = name, f"hf://datasets/{name}"
        given = dict(options or {})
        self._seconds = given.pop(TIME_LIMIT, SECONDS)
        self._client = {one: value for one, value in given.items() if not is_shared or one in ("endpoint", "token")}
        self._api = self._ask("opening the storage", HfApi, **self._client)
        self.page = f"{self._api.endpoint}/datasets/{name}"
        self.is_private: bool | None = None  # None: there is no such repository
        self._commit: str | None = None
        self._files: dict[str, RepoFile] = {}
        self._ask("looking at the repository", self._look)

    def _ask(self, doing: str, request: Callable[..., T], *args: Any, moving: int = 0, **given: Any) -> T:
        return asked(partial(request, *args, **given), self.url, doing, self._seconds * max(1.0, moving / REQUEST_BYTES))

    def _look(self) -> None:
        try:
            info = self._api.dataset_info(self.name)
        except GatedRepoError:  # which is there
            raise
        except RepositoryNotFoundError:
            return
        tree = self._api.list_repo_tree(self.name, recursive=True, revision=info.sha, repo_type="dataset")
        self._commit, self.is_private = info.sha, info.private
        self._files = {one.path: one for one in tree if isinstance(one, RepoFile)}

    def lacks(self, shard: Shard) -> bool:
        """Whether this shard is not there with these bytes."""
        file = self._files.get(shard.path)
        return file is None or file.lfs is None or file.lfs.sha256 != shard.sha256

    def check(self, dataset: Dataset, *, private: bool, overwrite: bool, dry_run: bool) -> None:
        """Raise UsageError for a public one that is to be `private`, OutputExists for other content, StorageError."""
        if private and self.is_private is False:
            fix = "make it private in its settings, or leave out --private"
            raise UsageError("the repository is there already, and is public", where=self.url, fix=fix)
        ours = {path for path in self._files if path == MANIFEST or SHARD_PATH.fullmatch(path)}
        others = sorted(self._files.keys() - ours - {CARD, ".gitattributes"})  # a new one has these
        if foreign := [path for path in others if path.startswith(f"{DATA}/")]:
            fix = "remove them there, or name another repository"
            raise OutputExists(f"data/ holds files that no dataset put there, such as {foreign[0]}", where=self.url, fix=fix)
        kept = {shard.path for shard in dataset.manifest.shards if not self.lacks(shard)}
        is_part = {MANIFEST} < ours <= {MANIFEST, *kept}  # of what is published: the same, or what has been appended to
        if not overwrite and (not is_part if ours else others):
            what = "another dataset is here" if ours else f"other files are here, such as {others[0]}"
            fix = "--overwrite to replace a dataset and leave other files, or name another repository"
            raise OutputExists(what, where=self.url, fix=fix)
        if dry_run:
            self._ask("checking the token", self._api.whoami)

    def publish(self, dataset: Dataset, card: str, new: Sequence[Shard], *, private: bool, on_progress: OnProgress) -> str:
        """Send `new` shards, then commit everything; the commit. Raises BadData, BadConfig (the card), Locked, StorageError."""
        if self._commit is None:
            how: dict[str, Any] = {"repo_type": "dataset", "private": private or None}
            self._ask("making the repository", self._api.create_repo, self.name, **how)
            self._ask("looking at the repository", self._look)
        operations: list[Any] = []
        for first in range(0, len(new), AT_ONCE):
            check()
            operations += self._send(dataset, new[first : first + AT_ONCE])
            on_progress(Progress("publishing", len(operations), len(new), "shards"))
        operations.append(CommitOperationAdd(MANIFEST, dataset.location.join(MANIFEST).read_bytes()))
        if MARK not in card or not self._has_own_card():
            operations.append(CommitOperationAdd(CARD, card.encode()))
        kept = {shard.path for shard in dataset.manifest.shards}
        gone = [path for path in self._files if SHARD_PATH.fullmatch(path) and path not in kept]
        operations += map(CommitOperationDelete, gone)
        counts = dataset.manifest.counts
        return self._push(operations, f"{counts.episodes:,} episodes, {counts.steps:,} steps")

    def _send(self, dataset: Dataset, shards: Sequence[Shard]) -> list[CommitOperationAdd]:
        with ExitStack() as held:
            adds = []
            for shard in shards:
                place = dataset.location.join(shard.path)
                place.size()  # raises where there is none
                file = place.path if place.is_local else place.read_bytes() if shard.bytes <= IN_MEMORY else None
                adds.append(CommitOperationAdd(shard.path, file or held.enter_context(place.open())))
                check_shard(dataset, shard, adds[-1].upload_info.sha256.hex())
            moving, upload = sum(shard.bytes for shard in shards), self._api.preupload_lfs_files
            self._ask("uploading", upload, self.name, moving=moving, additions=adds, repo_type="dataset")
        return adds

    def _has_own_card(self) -> bool:
        """Whether somebody wrote a card there, more than the header that a new repository may begin with."""
        if CARD not in self._files:
            return False
        read = HfFileSystem(**self._client).cat_file
        card = bytes(self._ask("reading its card", read, f"datasets/{self.name}@{self._commit}/{CARD}")).decode(
            "utf-8", "replace"
        )
        is_own = MARK not in card and bool(body_of(card).strip())
        if is_own:
            _log.warning("note: %s: its README.md was written there, and stays: it should name the licence", self.url)
        return is_own

    def _push(self, operations: Sequence[Any], title: str) -> str:
        how: dict[str, Any] = {"commit_message": title, "repo_type": "dataset", "parent_commit": self._commit}

        def commit() -> str:
            try:
                return str(self._api.create_commit(self.name, operations, **how).oid)
            except HfHubHTTPError as error:
                if error.response.status_code != 412:
                    raise
                fix = f"look at what it holds now, and run the command again: {SENT}"
                raise Locked("somebody has committed to the repository meanwhile", where=self.url, fix=fix) from error
            except ValueError as error:  # of the header, which the client has the Hub check
                if CARD not in str(error):
                    raise
                fix = f"another --license, or mend README.md, and run the command again: {SENT}"
                raise BadConfig(f"the Hub refuses the card: {error}", where=f"{self.url}/{CARD}", fix=fix) from error

        return self._ask("committing", commit)
