"""A source of another package, whose fragments are checked on their way, so that its mistakes are reported as that package's.

Our own sources are trusted: few places make their fragments. A wrong array of a plug-in would be found much later, in a
place unrelated to its cause, or be written into a dataset that no command reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData
from offline_cli.formats.source import Fragments, ReadOptions, Source, SourceInfo
from offline_cli.tally import Rejects, Tally
from offline_cli.trees import flatten

__all__ = ["PluginSource"]

MEMBERS: Final = ("fragments", "info", "unit", "done", "size", "prepare", "partitions", "close")
FIX: Final = "correct the reader: docs/extending.md has an example, and episodes/batch_arrays.py the form of each array"
PER_EPISODE: Final = {"terminated": "b", "truncated": "b", "t_started": "i", "start_kind": "u", "final_missing": "b"}
"""Arrays (E,), by kind of their dtype."""
WORDS: Final = {"b": "booleans", "i": "integers", "u": "uint8"}


class PluginSource:
    """`source`, of the reader `name`."""

    def __init__(self, source: Source, name: str) -> None:
        """Raises BadConfig for an object that is not a Source."""
        missing = [member for member in MEMBERS if not hasattr(source, member)]
        if missing:
            what = f"the reader {name!r} opens a {type(source).__name__}, which is not a Source: it lacks {', '.join(missing)}"
            raise BadConfig(what, where=f"reader {name}", fix="derive it from offline_cli.formats.source.FileSource")
        self._source, self._name = source, name

    @property
    def info(self) -> SourceInfo:
        """See `Source`."""
        return self._source.info

    @property
    def unit(self) -> str:
        """See `Source`."""
        return self._source.unit

    @property
    def size(self) -> int | None:
        """See `Source`."""
        return self._source.size

    @property
    def done(self) -> int:
        """See `Source`."""
        return self._source.done

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`."""
        self._source.prepare(options)

    def partitions(self, count: int) -> Sequence[PluginSource]:
        """See `Source`."""
        return [PluginSource(part, self._name) for part in self._source.partitions(count)]

    def close(self) -> None:
        """See `Source`."""
        self._source.close()

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`. Raises BadData for invalid fragments."""
        for fragments in self._source.fragments(tally, rejects):
            fault = _fault(fragments)
            if fault:
                raise BadData(f"the reader {self._name!r} yields {fault}", where=self.info.location, fix=FIX)
            yield fragments


def _fault(fragments: Any) -> str:
    """What is wrong with an item, as text; empty where nothing is."""
    if not isinstance(fragments, Fragments):
        return f"{type(fragments).__name__}, not Fragments(batch)"
    batch: Any = fragments.batch
    if not isinstance(batch, EpisodeBatch):
        return f"Fragments of {type(batch).__name__}, not of an EpisodeBatch"
    ids: Any = batch.ids
    if not (isinstance(ids, tuple) and all(isinstance(name, str) for name in ids)):
        return f"ids that are no tuple of texts: {str(ids)[:80]!r}"
    if _form(batch.starts) != ("i", 1):
        return f"starts that are no array (E+1,) of integers: {_in_words(batch.starts)}"
    if _form(batch.rewards) != ("f", 1):
        return f"rewards that are no array (N,) of decimals: {_in_words(batch.rewards)}"
    for name, kind in PER_EPISODE.items():
        value = getattr(batch, name)
        if value is not None and _form(value) != (kind, 1):
            return f"{name} that are no array (E,) of {WORDS[kind]}: {_in_words(value)}"
    trees = (("obs", batch.obs), ("actions", batch.actions), *batch.extra.items())
    for path, leaf in (pair for name, tree in trees for pair in flatten(tree, name)):
        if _form(leaf)[0] not in "biuf":
            return f"{path} that hold no numbers: {_in_words(leaf)}"
    return ""


def _form(value: Any) -> tuple[str, int]:
    return (value.dtype.kind, value.ndim) if isinstance(value, np.ndarray) else ("", 0)


def _in_words(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
