"""The text of a mapping, from a file or a preset; refuses a name that neither has, with the presets that there are."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from offline_cli.errors import StorageNotFound
from offline_cli.formats.tables.presets import preset_names, preset_text
from offline_cli.storage.local_files import dangling_link
from offline_cli.storage.locations import open_location

__all__ = ["mapping_text"]


def mapping_text(given: str, storage_options: Mapping[str, Any] | None = None) -> bytes:
    """TOML. A preset's name goes before a file's: write `./rllib` for a file of that name. Raises StorageNotFound."""
    presets = preset_names()
    if given in presets:
        return preset_text(given).encode()
    location = open_location(given, storage_options)
    if location.exists():
        return location.read_bytes()
    if location.is_local and (broken := dangling_link(location.path, shown=given)):
        raise broken
    near = get_close_matches(given, presets, n=1)
    fix = f"did you mean {near[0]}?" if near else f"give the path of a file, or one of {', '.join(presets)}"
    raise StorageNotFound(f"no mapping file and no preset is called {given}", where="--mapping", fix=fix)
