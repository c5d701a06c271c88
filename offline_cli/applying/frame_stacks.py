"""Stacks of frames as rows of single frames, from which whoever makes batches gathers them.

A learner pipeline with FrameStacking makes each observation N times as large as the frame that it adds. Where all pieces after
it leave observations alone (`stack_by_rows`), the piece says instead which frame each step ends with, and how many frames of
its episode come before it: `FrameStacks` holds every frame once, and `gather_stacks` puts stacks into tensors, on
whatever device the frames are. Values are those of the piece, bit for bit: the oldest frame first, zeros before the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from torch import Tensor

from offline_cli.connectors.common.frame_stacking import FrameStacking
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.learner.added_columns import (
    AddNextActionsFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
)
from offline_cli.connectors.learner.default_pipeline import default_pieces
from offline_cli.connectors.learner.returns import ClipRewards, ComputeReturnsToGo
from offline_cli.trees import Tree, leaves

__all__ = ["FrameStacks", "gather_stacks", "stack_by_rows"]

MOST: Final = 255  # frames of a stack: an age, and the next one, is one byte
LEAVE_OBSERVATIONS: Final = (  # for a module without memory, as the default pieces do
    AddNextObservationsFromEpisodesToTrainBatch,
    AddNextActionsFromEpisodesToTrainBatch,
    ClipRewards,
    ComputeReturnsToGo,
)


def stack_by_rows(pipeline: ConnectorPipelineV2) -> FrameStacking | None:
    """Have the pipeline's FrameStacking give rows of frames, where it is the last piece to fill or change observations; None:
    there is none, or a piece after it may look at them. With it, `new_obs` are rows too.
    """
    pieces = list(pipeline.pieces())
    stacking = [piece for piece in pieces if type(piece) is FrameStacking]
    if len(stacking) != 1 or not stacking[0].may_give_rows or stacking[0].num_frames > MOST:
        return None
    after, known = pieces[pieces.index(stacking[0]) + 1 :], {*LEAVE_OBSERVATIONS, *map(type, default_pieces())}
    if not known.issuperset(map(type, after)):
        return None
    stacking[0].by_rows = True
    for piece in after:
        if isinstance(piece, AddNextObservationsFromEpisodesToTrainBatch):
            piece.by_rows = True
    return stacking[0]


@dataclass(frozen=True, slots=True, eq=False)
class FrameStacks:
    """N stacks of `size` frames each."""

    frames: Tree  # leaves (M, ..., C): each frame once
    rows: Tensor  # (N,) int64: the newest frame of each stack
    ages: Tensor  # (N,) uint8: frames before it that are of its episode, at most size - 1
    size: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """(..., size * C) of each leaf."""
        shapes = [tuple(leaf.shape[1:]) for leaf in leaves(self.frames)]
        return [(*shape[:-1], self.size * shape[-1]) if shape else (self.size,) for shape in shapes]

    @property
    def nbytes(self) -> int:
        """Of what says where its frames are: several may share these."""
        return self.rows.nbytes + self.ages.nbytes

    def next_ones(self, rows: Tensor) -> Self:
        """The stacks that end one frame later, in `rows` (N,)."""
        return replace(self, rows=rows, ages=(self.ages + 1).clamp(max=self.size - 1))


def gather_stacks(
    take: Callable[[Tensor], Sequence[Tensor]], rows: Tensor, ages: Tensor, size: int, targets: Sequence[Tensor]
) -> None:
    """Put the stacks that end with the frames `rows` (B,) into `targets`. `take`: the frames of given numbers, leaf by leaf."""
    for place in range(size):
        back = size - 1 - place
        gone = ages < back
        for found, target in zip(take(rows - ages.clamp(max=back)), targets, strict=True):
            found.masked_fill_(gone.view(-1, *[1] * (found.ndim - 1)), 0)
            shape = tuple(found.shape[1:])
            places, width = (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)
            target.view(len(rows), places, size, width)[:, :, place].copy_(found.view(len(rows), places, width))
