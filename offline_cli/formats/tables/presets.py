"""Mappings that ship with the package, by name; refuses names that no preset has (`load_mapping` tells which exist)."""

from __future__ import annotations

from functools import cache

from offline_cli.json_documents import schemas_folder

__all__ = ["DEFAULT", "preset_names", "preset_text"]

DEFAULT = "rllib"
ENDING = ".v1.toml"


@cache
def preset_names() -> tuple[str, ...]:
    """All presets, sorted."""
    return tuple(sorted(path.name.removesuffix(ENDING) for path in (schemas_folder() / "mappings").glob(f"*{ENDING}")))


def preset_text(name: str) -> str:
    """The TOML of one preset."""
    return (schemas_folder() / "mappings" / f"{name}{ENDING}").read_text(encoding="utf-8")
