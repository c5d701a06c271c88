"""Pieces of more than one pipeline, one file per piece; imports them when asked for."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`from offline_cli.connectors.common import ...`, as RLlib's code has it."""
    import offline_cli.connectors as connectors

    if name not in connectors.__all__ or name.islower():  # RLlib has modules, not functions, under the lower-case names
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(connectors, name)
