"""Which extra model outputs of several sources are kept, decided before structures are compared.

What an algorithm does not use must not decide whether sources can be learned from together. So a reader names the outputs that
it needs, and only these reach `EpisodeBatch`; or it takes those that all sources share (same names, dtypes and shapes), where
pieces of a pipeline may use any of them and nobody knows which. `left_out` says why the others are not there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import PROBLEM, BadEpisode, OfflineCliError
from offline_cli.formats.source import Fragments, Source
from offline_cli.tally import OnError, Rejects, Tally
from offline_cli.trees import Tree, flatten

__all__ = ["ExtraOutputs", "first_batch"]

FIX = "leave the source out, or train through pieces that do not use this output"


@dataclass(slots=True, eq=False)
class ExtraOutputs:
    """The names that are kept; for one reading, or several of the same sources."""

    names: Collection[str]
    left_out: Mapping[str, str] = field(default_factory=dict)  # by name: which source has which form of it
    _first: tuple[str, frozenset[str]] | None = None  # the first source, and what it has of `names`

    @classmethod
    def shared(cls, sources: Sequence[Source], *, needed: Collection[str] = ()) -> ExtraOutputs:
        """Those that are `needed`, and those that all `sources` have in one form.

        Reads the first batch of each source. Raises what reading raises.
        """
        forms = {source.info.location: _forms(source) for source in sources}
        names = dict.fromkeys(name for known in forms.values() for name in known)
        differing = {
            name: ", ".join(f"{known.get(name, 'none')} in {place}" for place, known in forms.items())
            for name in names
            if name not in needed and len({known.get(name) for known in forms.values()}) > 1
        }
        return cls((*needed, *(name for name in names if name not in differing)), differing)

    def of(self, batch: EpisodeBatch, location: str) -> EpisodeBatch:
        """`batch`, from the source `location`, with the outputs that are kept. Raises BadEpisode where it lacks one."""
        kept = {name: tree for name, tree in batch.extra.items() if name in self.names}
        first, known = self._first = self._first or (location, frozenset(kept))
        if location != first and known != kept.keys():
            name = min(known ^ kept.keys())
            has, lacks = (first, location) if name in known else (location, first)
            what = f"the extra model output {name!r} is used, and only some of the sources have it: {has} has, {lacks} does not"
            raise BadEpisode(what, where=lacks, fix=FIX, details={PROBLEM: "mixed-structures"})
        return batch if len(kept) == len(batch.extra) else replace(batch, extra=kept)

    def of_dtypes(self, dtypes: Mapping[str, np.dtype[Any]]) -> Mapping[str, np.dtype[Any]]:
        """Those, by dotted path of the leaf, of the outputs that are kept."""
        return {path: dtype for path, dtype in dtypes.items() if path.partition(".")[0] in self.names}

    def missed_by(self, error: OfflineCliError) -> BadEpisode | None:
        """What to raise in place of a piece's `error` about an output that is left out; None: it is about something else."""
        for name, forms in self.left_out.items():
            if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", error.what):
                what = f"{error.what}; the sources differ in the extra model output {name!r}: {forms}"
                return BadEpisode(what, where=error.where, fix=FIX, details={PROBLEM: "mixed-structures"})
        return None


def _forms(source: Source) -> dict[str, str]:
    """The form of each extra model output in the first batch of a source, in words."""
    first = first_batch(source)
    return {} if first is None else {name: _form(tree) for name, tree in first.extra.items()}


def first_batch(source: Source, on_error: OnError = OnError.FAIL) -> EpisodeBatch | None:
    """The first batch of a source; None: there is none. Raises what reading raises."""
    with closing(cast(Any, source.fragments(Tally(), Rejects(on_error)))) as fragments:
        first: Fragments | None = next(fragments, None)
    return None if first is None else first.batch


def _form(tree: Tree) -> str:
    parts = [(path, f"{leaf.dtype} {leaf.shape[1:]}" if leaf.shape[1:] else f"{leaf.dtype}") for path, leaf in flatten(tree)]
    return ", ".join(f"{path}: {form}" if path else form for path, form in parts)
