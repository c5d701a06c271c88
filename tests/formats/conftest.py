"""What tests of readers share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.tables import TableOptions


@pytest.fixture
def read_table(tmp_path: Path) -> Callable[..., tuple[EpisodeStream, EpisodeBatch | None]]:
    """A function that reads a table to its end: the stream, for its counts, and all episodes; a mapping may be TOML text."""

    def read(
        source: Path | str, mapping: str | None = None, *, keep: Any = None, **said: Any
    ) -> tuple[EpisodeStream, EpisodeBatch | None]:
        if mapping is not None and "\n" in mapping:
            (tmp_path / "mapping.toml").write_text(mapping, encoding="utf-8")
            mapping = str(tmp_path / "mapping.toml")
        options = {name: said.pop(name) for name in list(said) if name in TableOptions.__dataclass_fields__}
        stream = read_episodes(str(source), tables=TableOptions(mapping, **options), **said)
        if keep is not None:
            stream.set_aside_to(keep)
        batches = list(stream)
        return stream, EpisodeBatch.concat(batches) if batches else None

    return read


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes text, or objects as JSON lines, to a file."""

    def write(name: str, *lines: Any) -> Path:
        path = tmp_path / name
        path.write_text(
            "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), encoding="utf-8"
        )
        return path

    return write
