"""How a dataset came to be: the part of a manifest that two runs of one command need not share; refuses nothing."""

from __future__ import annotations

import datetime
import platform
import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from offline_cli import __version__
from offline_cli.storage.blanking import this_command

__all__ = ["now", "with_defaults"]

PACKAGES = ("numpy", "pyarrow", "gymnasium")


def now() -> str:
    """This moment in ISO text, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def with_defaults(given: Mapping[str, Any], *, started: str) -> dict[str, Any]:
    """`given` with commands, times, host and versions filled in where it does not say them."""
    return {
        "commands": [this_command()],
        "started": started,
        "finished": now(),
        "host": socket.gethostname(),
        **given,
        "versions": {**_versions(), **given.get("versions", {})},
    }


def _versions() -> dict[str, str]:
    found = {"offline-cli": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # installed by other means than pip
            found[name] = "unknown"
    return found
