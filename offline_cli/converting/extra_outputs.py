"""Which extra model outputs of several sources are kept, before structures are compared: outputs that an algorithm does not
use must not decide whether sources can be combined for training.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from offline_cli.converting.fitting import in_words
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import PROBLEM, BadEpisode
from offline_cli.formats.source import Fragments, Source
from offline_cli.tally import OnError, Rejects, Tally


@dataclass(slots=True, eq=False)
class ExtraOutputs:
    """The names that are kept; for one reading, or several of the same sources."""

    names: Collection[str]
    left_out: Mapping[str, str] = field(default_factory=dict)  # by name: which source has which form of it
    _first: tuple[str, frozenset[str]] | None = None  # the first source, and what it has of `names`

    @classmethod
    def shared(cls, sources: Sequence[Source]) -> ExtraOutputs:
        """Those that all `sources` have in one form. Reads the first batch of each source. Raises what reading raises."""
        forms: dict[str, dict[str, str]] = {}  # by source: structure, dtypes and shapes by name
        for source in sources:
            batch = first_batch(source)
            extra = {} if batch is None else batch.extra
            forms[source.info.location] = {name: in_words(tree) for name, tree in extra.items()}
        names = dict.fromkeys(name for known in forms.values() for name in known)
        left_out = {
            name: ", ".join(f"{known.get(name, 'none')} in {place}" for place, known in forms.items())
            for name in names
            if len({known.get(name) for known in forms.values()}) > 1
        }
        return cls([name for name in names if name not in left_out], left_out)

    def of(self, batch: EpisodeBatch, location: str) -> EpisodeBatch:
        """`batch`, from the source `location`, with the outputs that are kept. Raises BadEpisode where it lacks one."""
        kept = {name: tree for name, tree in batch.extra.items() if name in self.names}
        first, known = self._first = self._first or (location, frozenset(kept))
        if location != first and known != kept.keys():
            name = min(known ^ kept.keys())
            has, lacks = (first, location) if name in known else (location, first)
            what = f"the extra model output {name!r} is used, and only some of the sources have it: {has} has, {lacks} does not"
            fix = "leave the source out, or train through pieces that do not use this output"
            raise BadEpisode(what, where=lacks, fix=fix, details={PROBLEM: "mixed-structures"})
        return batch if len(kept) == len(batch.extra) else replace(batch, extra=kept)


Extras = Callable[[Sequence[Source]], ExtraOutputs | None] | None
CHOSEN: Final[Mapping[str, Extras]] = {"union": None, "common": ExtraOutputs.shared, "drop": lambda _: ExtraOutputs(())}
"""What chooses the outputs to keep, by the value of `--extras`; None: all are kept, and have to be the same ones."""


def first_batch(source: Source, on_error: OnError = OnError.FAIL) -> EpisodeBatch | None:
    """The first batch of a source; None: there is none. Raises what reading raises."""
    with closing(source), closing(cast(Any, source.fragments(Tally(), Rejects(on_error)))) as fragments:
        first: Fragments | None = next(fragments, None)
    return None if first is None else first.batch
