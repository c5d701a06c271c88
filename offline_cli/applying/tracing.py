"""Traces a batch through a pipeline: what it holds after each piece, for the first episodes of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from offline_cli.applying.column_summary import Seen, seen_in_batch, seen_in_episodes
from offline_cli.applying.learner_batches import grouped, in_learner_units, stepped, with_steps
from offline_cli.applying.recordings import Said
from offline_cli.connectors.pipeline_files import PipelineFile
from offline_cli.errors import NoData, OfflineCliError

__all__ = ["PieceTraced", "PipelineTraced", "trace_pipeline"]

ALL: Final = 1 << 62  # steps: whatever there is, as one batch


@dataclass(frozen=True, slots=True)
class PieceTraced:
    """What there is after one piece."""

    name: str
    columns: tuple[Seen, ...]  # of the batch
    episodes: tuple[Seen, ...]  # observations, actions and rewards, as later pieces find them

    def as_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        seen = {"columns": self.columns, "episodes": self.episodes}
        return {"name": self.name, **{name: [one.as_dict() for one in found] for name, found in seen.items()}}


@dataclass(frozen=True, slots=True)
class PipelineTraced:
    """What `apply --trace` tells."""

    pipeline: str  # the file
    sources: tuple[str, ...]
    episodes: tuple[str, ...]  # ids of those that were followed
    steps: int
    start: tuple[Seen, ...]  # the episodes before the first piece
    pieces: tuple[PieceTraced, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        return {
            "pipeline": self.pipeline,
            "sources": list(self.sources),
            "episodes": list(self.episodes),
            "steps": self.steps,
            "start": [one.as_dict() for one in self.start],
            "pieces": [piece.as_dict() for piece in self.pieces],
        }


def trace_pipeline(file: PipelineFile, said: Said, *, episodes: int) -> PipelineTraced:
    """The first `episodes`, those without a step left out, as one train batch, after each piece.

    Raises what `apply` raises; where a piece raises, the error's `result` has the trace up to it.
    """
    ready = said.open().ready(file, limit=episodes)
    with ready.stream:
        first = next(grouped(filter(len, map(with_steps, ready.stream)), ALL), None)
    if first is None:
        fix = "a larger --trace, or recordings that have steps"
        raise NoData("no step in the first episodes", where=ready.where, fix=fix)
    learned = in_learner_units(first, ready.action_space, ready.stream.action_scale)
    locations, start = tuple(ready.stream.locations), seen_in_episodes(learned)
    pieces: list[PieceTraced] = []

    def traced() -> PipelineTraced:
        return PipelineTraced(file.where, locations, learned.ids, learned.num_steps, start, tuple(pieces))

    try:
        for name, batch, left in stepped(ready.pipeline, learned, where=ready.where):
            pieces.append(PieceTraced(name, seen_in_batch(batch), seen_in_episodes(left)))
    except OfflineCliError as err:
        err.result = traced().as_dict()
        raise
    return traced()
