"""Train batches of a stream of episodes, each checked and ready to be stored: all have the columns of the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from offline_cli.applying.batch_formats import BatchFormat, ColumnKind, TrainColumns, train_columns
from offline_cli.applying.learner_batches import grouped, in_learner_units, through, with_steps
from offline_cli.applying.recordings import Ready
from offline_cli.connectors.connector_v2 import state_to_bytes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece

__all__ = ["TrainBatch", "TrainBatches"]


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """One train batch, ready to be stored."""

    prepared: Any  # what `BatchFormat.store` takes
    columns: TrainColumns
    episodes: int
    steps: int


class TrainBatches:
    """The train batches of `ready`, to be iterated over once; what it counts is complete when they end."""

    def __init__(self, ready: Ready, stored_as: BatchFormat, *, steps_per_batch: int) -> None:
        """`steps_per_batch`: a batch closes with the episode that brings it to so many steps."""
        self._ready, self._stored_as, self._steps_per_batch = ready, stored_as, steps_per_batch
        self.batches = self.rows = self.episodes = self.steps = 0
        self.kinds: tuple[ColumnKind, ...] = ()  # those of the first batch
        self.names: tuple[str, ...] = ()  # of its columns

    def __iter__(self) -> Iterator[TrainBatch]:
        """Raises what reading raises; BadPiece for pieces that raise or return no batch; BadConfig for the format."""
        moving = filter(len, map(with_steps, self._ready.stream))
        for episodes in grouped(moving, self._steps_per_batch):
            made = self._made(episodes)
            self._count(made)
            yield made

    def _made(self, episodes: EpisodeBatch) -> TrainBatch:
        ready, where = self._ready, f"train batch from episode {episodes.ids[0]} of {self._ready.where}"
        learned = in_learner_units(episodes, ready.action_space, ready.stream.action_scale)
        batch, added = through(ready.pipeline, learned, where=ready.where)
        columns = train_columns(batch, added, where=where, tally=ready.stream.tally)
        if self.kinds:
            _check_same(self.kinds, columns, where)
        else:
            state_to_bytes(ready.pipeline.get_state(), where=where)  # one that cannot be saved is known at once
        prepared = self._stored_as.prepared(columns, where=where)
        return TrainBatch(prepared, columns, len(episodes), episodes.num_steps)

    def _count(self, made: TrainBatch) -> None:
        self.kinds, self.names = self.kinds or made.columns.kinds, self.names or tuple(made.columns.columns)
        self.batches, self.rows = self.batches + 1, self.rows + made.columns.rows
        self.episodes, self.steps = self.episodes + made.episodes, self.steps + made.steps

    def counts(self) -> dict[str, int]:
        """Batches, rows, episodes and steps so far."""
        return {"batches": self.batches, "rows": self.rows, "episodes": self.episodes, "steps": self.steps}


def _check_same(kinds: tuple[ColumnKind, ...], columns: TrainColumns, where: str) -> None:
    before, after = ({kind.name: kind for kind in found} for found in (kinds, columns.kinds))
    different = next((name for name in {**before, **after} if before.get(name) != after.get(name)), None)
    if different is not None:
        piece = columns.added_by.get(different.partition(".")[0], "(none)")
        one, other = before.get(different, "absent"), after.get(different, "absent")
        what = f"column {different!r} of piece {piece} is {one} in the first batch and {other} in this one"
        raise BadPiece(what, where=where, fix="the same columns, dtypes and shapes in every batch")
