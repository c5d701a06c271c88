"""The episodes that one policy learns from: those of a single module, the only one there or the one that the caller names."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from offline_cli.connectors.common.rl_modules import DEFAULT_MODULE_ID
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig

__all__ = ["of_one_module"]

OPTION: Final = "--module-id"
MAX_NAMED: Final = 10


def of_one_module(
    batches: Iterable[EpisodeBatch], wanted: str | None, *, where: str, seen: Counter[str] | None = None
) -> Iterator[EpisodeBatch]:
    """Those of `batches` that module `wanted` acted in; None: all, of whatever module. An episode without a module id is of the
    module `default_policy`.

    At the end of the data, with every module known, raises BadConfig where `wanted` is none of them, or where it is None and
    there are several. `seen` counts the episodes of each module.
    """
    seen = Counter() if seen is None else seen
    for batch in batches:
        ids = batch.module_ids
        names = [DEFAULT_MODULE_ID] * len(batch) if ids is None else [id_ or DEFAULT_MODULE_ID for id_ in ids]
        here = Counter(names)
        seen.update(here)
        if wanted is None:
            if len(seen) == 1:
                yield batch
        elif len(here) == 1 and wanted in here:
            yield batch
        elif wanted in here:
            yield batch.select(np.flatnonzero([name == wanted for name in names]))
    if wanted is None and len(seen) > 1:
        what = f"the data holds episodes of {len(seen)} modules, {_listed(seen)}: one policy learns from one of them"
        raise BadConfig(what, where=where, fix=f"{_choice(seen)} to train that one")
    if wanted is not None and seen and wanted not in seen:
        what = f"no episode is of module {wanted!r}: the data holds {_listed(seen)}"
        raise BadConfig(what, where=where, fix=_choice(seen))


def _choice(seen: Counter[str]) -> str:
    return f"{OPTION} {shlex.quote(next(iter(seen)))}"


def _listed(seen: Counter[str]) -> str:
    named = ", ".join(f"{name} ({count})" for name, count in list(seen.items())[:MAX_NAMED])
    return named if len(seen) <= MAX_NAMED else f"{named} and {len(seen) - MAX_NAMED} more"
