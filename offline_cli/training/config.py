"""The configuration of behaviour cloning, resolved from defaults < stored run < --config file < options; refuses it by listing
every mistake at once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from offline_cli.errors import BadConfig
from offline_cli.storage.links import not_found
from offline_cli.training.config_mistakes import BOUNDS, config_mistakes

__all__ = ["BCConfig", "differences", "read_config", "resolve_config"]

DEFAULT_EPOCHS, BOUND_EPOCHS = 20, 200
EVAL_EVERY_RANGE = (100, 1000)
_HELP, _PAGE = "`offline-cli train-bc --help` lists the options", "docs/config.md lists the keys of the file"


@dataclass(frozen=True, slots=True)
class BCConfig:
    """Every choice of a run but data and output. Fields, units and ranges: schemas/config.v1.json."""

    env: str | None = None
    action_scale: str | None = None
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    batch_size: int = 1024
    lr: float = 5e-4
    updates: int | None = None
    epochs: int | None = None
    until_return: float | None = None
    val_fraction: float | None = None
    patience: int | None = None
    eval_every: int | None = None
    eval_episodes: int = 20
    confirm_episodes: int = 100
    checkpoint_every: int = 500
    log_every: int = 50
    device: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    seed: int = 0
    streaming: bool = False
    memory_limit: int | None = None

    @property
    def bound_name(self) -> str:
        """Which of the two bounds holds: `updates` or `epochs`."""
        return "epochs" if self.updates is None else "updates"

    def bound(self, updates_per_epoch: int) -> int:
        """The update number at which training ends, whatever it has reached."""
        return self.updates if self.updates is not None else (self.epochs or DEFAULT_EPOCHS) * updates_per_epoch

    def check_every(self, updates_per_epoch: int) -> int:
        """Updates between two checks."""
        low, high = EVAL_EVERY_RANGE
        return self.eval_every if self.eval_every is not None else min(max(updates_per_epoch, low), high)

    def as_dict(self) -> dict[str, Any]:
        """What is not None, with lists for tuples: the content of config.toml."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: value for name, value in plain.items() if value is not None}


def resolve_config(
    options: Mapping[str, Any], *, file: str | PathLike[str] | None = None, stored: Mapping[str, Any] | None = None
) -> BCConfig:
    """The configuration; options that are None were not given. `stored` is that of the run to resume.

    Raises BadConfig with every mistake in `details["problems"]`, StorageNotFound for a file that is not there.
    """
    given = {name: value for name, value in options.items() if value is not None}
    from_file = read_config(file) if file is not None else {}
    merged = {**(stored or {}), **from_file, **given}
    for chosen, other in (BOUNDS, BOUNDS[::-1]):  # one that was just asked for replaces a stored one
        if stored and other in stored and chosen in {**from_file, **given} and other not in {**from_file, **given}:
            del merged[other]
    problems = config_mistakes(merged, given)
    if problems:
        raise BadConfig.of(problems, where=_sources(file, given, stored), fix=_HELP if file is None else f"{_HELP}; {_PAGE}")
    if not merged.keys() & set(BOUNDS):
        merged["epochs"] = BOUND_EPOCHS if {"until_return", "patience"} & merged.keys() else DEFAULT_EPOCHS
    if "hidden" in merged:
        merged["hidden"] = tuple(merged["hidden"])
    return BCConfig(**merged)


def _sources(file: str | PathLike[str] | None, given: Mapping[str, Any], stored: Mapping[str, Any] | None) -> str:
    """Where the keys came from, in words."""
    sources = {"options": given, "the run's config.toml": stored, str(file): file}
    return " and ".join(name for name, used in sources.items() if used) or "options"


def differences(stored: BCConfig, wanted: BCConfig) -> list[str]:
    """What sets the two apart, in words, but for their bounds, and a limit on memory where nothing streams: no update depends
    on these.
    """
    free = BOUNDS if stored.streaming or wanted.streaming else (*BOUNDS, "memory_limit")
    names = [field.name for field in fields(BCConfig) if field.name not in free]
    pairs = ((name, getattr(stored, name), getattr(wanted, name)) for name in names)
    return [f"{name}: the run has {_shown(old)}, this call asks for {_shown(new)}" for name, old, new in pairs if old != new]


def _shown(value: Any) -> str:
    return "none" if value is None else str(list(value) if isinstance(value, tuple) else value)


def read_config(file: str | PathLike[str]) -> dict[str, Any]:
    """What a file of the user's says, unchecked. Raises BadConfig where it is no TOML, StorageNotFound."""
    path = Path(file)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise not_found(path, "no such config file", where=str(path), fix="check the path") from err
    except (ValueError, RecursionError) as err:  # ValueError: TOMLDecodeError, text that is not UTF-8, a date that is none
        raise BadConfig(f"not TOML: {err}", where=str(path), fix="see https://toml.io for the syntax") from err
