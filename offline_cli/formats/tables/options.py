"""What a caller may say about tables before they are opened; refuses to read anything."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from offline_cli.byte_sizes import byte_size
from offline_cli.errors import UsageError
from offline_cli.formats.memory import MEMORY_LIMIT
from offline_cli.formats.tables.mapping import mapping_text
from offline_cli.options.shared import EpisodeEnds, Tables
from offline_cli.storage.local_files import checked_folder

__all__ = ["EPISODE_ENDS", "MEMORY_LIMIT", "TableOptions"]

EPISODE_ENDS: Final[tuple[str, ...]] = get_args(EpisodeEnds)
LEAST_MEMORY: Final = 256 << 20  # the program itself takes half of that


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How to read tables. Raises UsageError for what makes no sense."""

    mapping: str | None = None  # a file by path or URL, or the name of a preset; None: `rllib`, where its columns are there
    rows_as_episodes: bool = False  # each row is an episode of one step
    episode_ends: str | None = None  # flags | t | chain; None: as the mapping says
    temp_dir: str | None = None  # where rows go that do not fit into memory; None: the system's
    memory_limit: int = MEMORY_LIMIT  # bytes that the whole conversion may take

    def __post_init__(self) -> None:
        if self.episode_ends is not None and self.episode_ends not in EPISODE_ENDS:
            fix = f"use {', '.join(EPISODE_ENDS[:-1])} or {EPISODE_ENDS[-1]}"
            raise UsageError(f"episodes cannot end by {self.episode_ends!r}", where="--episode-ends", fix=fix)
        if self.rows_as_episodes and self.episode_ends is not None:
            fix = "give one of the two"
            raise UsageError("where each row is an episode, nothing else ends one", where="--episode-ends", fix=fix)
        if self.memory_limit < LEAST_MEMORY:
            what = f"{self.memory_limit} bytes are too few to read a table in"
            raise UsageError(what, where="--memory-limit", fix=f"give at least {LEAST_MEMORY >> 20} MiB")

    @classmethod
    def of(cls, options: Tables) -> TableOptions:
        """As the keywords of a function say it. Raises UsageError, StorageError where `temp_dir` cannot be written to."""
        return cls(
            options["mapping"],
            options["rows_as_episodes"],
            options["episode_ends"],
            checked_folder(options["temp_dir"]),
            byte_size(options["memory_limit"], option="--memory-limit"),
        )

    def identity(self, storage_options: Mapping[str, Any] | None = None) -> list[Any]:
        """Plain values that are the same for the same reading. Raises StorageNotFound where there is no such mapping."""
        text = None if self.mapping is None else mapping_text(self.mapping, storage_options)
        digest = None if text is None else hashlib.sha256(text).hexdigest()
        return [digest, self.rows_as_episodes, self.episode_ends]
