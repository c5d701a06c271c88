"""What a learner pipeline makes of episodes, as the columns that an algorithm learns from.

The default pipeline makes nothing of its own for a module without memory: its columns are the recorded ones, and are taken as
they are.

Rows that `loss_mask` marks as False, such as those that pad or lengthen episodes, are never learned from, and not measured on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.applying.learner_episodes import through
from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.common.numpy_to_tensor import as_tensors
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData
from offline_cli.modules.rl_module import evaluating
from offline_cli.spaces import Space, leaf_spaces, tree_from_lists
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["TRAINED_ON", "choices_of", "learner_columns", "nothing_left"]

TRAINED_ON: Final = (Columns.OBS, Columns.ACTIONS)
PLACE: Final = "learner pipeline"


def learner_columns(
    pipeline: ConnectorPipelineV2 | None,
    episodes: EpisodeBatch,
    announced: tuple[Space, Space],
    *,
    where: str,
    asked: Sequence[str] = TRAINED_ON,
    rl_module: nn.Module | None = None,
) -> dict[str, Tree]:
    """The columns `asked` for, in that order, as trees of tensors (N, ...) on the CPU.

    Observations and actions are of the spaces that the pipeline `announced`; what the others are, its pieces say. `pipeline`
    None: the default one, before a module without memory.

    `rl_module`: for pieces that compute values or states with it, without gradients.

    Raises BadPiece for what a piece raises; BadConfig for columns that are missing, not stacked, or of other shapes than
    announced; BadData for numbers that no policy could learn from.
    `where` names the data.
    """
    spaces = {Columns.OBS: announced[0], Columns.NEXT_OBS: announced[0], Columns.ACTIONS: announced[1]}
    if pipeline is None:
        batch = episodes.step_columns() | {Columns.OBS: episodes.acted_obs()}
    else:
        batch = _made(pipeline, episodes, where, asked, rl_module)
    columns = {name: _column(batch, name, spaces.get(name)) for name in asked}
    _check_rows(columns)
    if Columns.LOSS_MASK in batch:
        columns = _unmasked(columns, as_tensors(Columns.LOSS_MASK, batch[Columns.LOSS_MASK]).bool())
    for name, tree in columns.items():
        _check_finite(tree, name, where)
        if name in spaces:
            _check_choices(tree, spaces[name], name, where)
    return columns


def _made(
    pipeline: ConnectorPipelineV2, episodes: EpisodeBatch, where: str, asked: Sequence[str], rl_module: nn.Module | None
) -> Batch:
    """The train batch. Raises BadConfig where a column that is `asked` for is not stacked."""
    with playing(rl_module) as module:
        batch, _ = through(pipeline, episodes, where=where, rl_module=module)
    for name in (*asked, Columns.LOSS_MASK):
        if is_filed(batch.get(name)):
            fix = "end the pipeline with batch_individual_items, or keep the default pieces (defaults = true)"
            raise BadConfig(f"the pipeline leaves {name!r} as items by episode that nobody has stacked", where=PLACE, fix=fix)
    return batch


@contextmanager
def playing(rl_module: nn.Module | None) -> Iterator[nn.Module | None]:
    """The module on the CPU, where pieces are, as a copy if it lives elsewhere. Within it no gradient is taken, and the module
    is in evaluation mode: what it computes is data.
    """
    if rl_module is None:
        yield None
        return
    if any(parameter.device.type != "cpu" for parameter in rl_module.parameters()):
        rl_module = copy.deepcopy(rl_module).cpu()
    with evaluating(rl_module), torch.no_grad():
        yield rl_module


def _rows(columns: Mapping[str, Tree]) -> int:
    return len(leaves(next(iter(columns.values())))[0])


def _check_rows(columns: Mapping[str, Tree]) -> None:
    """Raise BadConfig where columns have different numbers of rows."""
    rows = {path: len(leaf) if leaf.ndim else 0 for name, tree in columns.items() for path, leaf in flatten(tree, name)}
    if len(set(rows.values())) > 1:
        what = f"the pipeline gave columns of different numbers of rows: {rows}"
        raise BadConfig(what, where=PLACE, fix="one row per step in every column that a piece adds")


def _column(batch: Mapping[str, Any], name: str, space: Space | None) -> Tree:
    """A column as tensors, in the structure that the pipeline announced; None: nobody has. Raises BadConfig for another."""
    if name not in batch:
        fix = "keep the default pieces (defaults = true), or list a piece that adds this column"
        raise BadConfig(f"the pipeline gives no {name!r}, but {sorted(map(str, batch))}", where=PLACE, fix=fix)
    if space is None:
        return as_tensors(name, batch[name])
    tree = as_tensors(name, tree_from_lists(batch[name], space))
    shapes = {path: tuple(leaf.shape[1:]) for path, leaf in flatten(tree, name)}
    announced = {path: tuple(leaf.shape or ()) for path, leaf in leaf_spaces(space, name).items()}
    if shapes != announced:
        what = f"the pipeline gave rows of {shapes}, and announced {announced}"
        fix = "a piece that changes shapes says so in recompute_output_observation_space or recompute_output_action_space"
        raise BadConfig(what, where=PLACE, fix=fix)
    return tree


def nothing_left() -> BadConfig:
    """The error for a mask that is False in every row."""
    return BadConfig(f"{Columns.LOSS_MASK!r} leaves no row to learn from", where=PLACE, fix="mask fewer rows")


def _unmasked(columns: dict[str, Tree], kept: Tensor) -> dict[str, Tree]:
    """The rows that are `kept`. Raises BadConfig for a mask of another shape."""
    rows = _rows(columns)
    if kept.shape != (rows,):
        what = f"{Columns.LOSS_MASK!r} of shape {tuple(kept.shape)} for {rows} rows"
        raise BadConfig(what, where=PLACE, fix="one value per row in every column that a piece adds")
    return columns if bool(kept.all()) else {name: map_leaves(lambda leaf: leaf[kept], tree) for name, tree in columns.items()}


def _check_finite(tree: Tree, name: str, where: str) -> None:
    """Raise BadData for a number that is none."""
    for path, leaf in flatten(tree, name):
        if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            fix = "mend its pieces, or scale the data: numbers are float32 here"
            raise BadData(f"after the learner pipeline {path} hold NaN or infinity", where=where, fix=fix)


def _check_choices(tree: Tree, space: Space, name: str, where: str) -> None:
    """Raise BadData for a choice that is none of `space`."""
    for (path, leaf), part in zip(flatten(tree, name), leaf_spaces(space).values(), strict=True):
        low, high = choices_of(part)
        if low is not None and bool(((leaf < torch.as_tensor(low)) | (leaf > torch.as_tensor(high))).any()):
            what = f"after the learner pipeline {path} hold choices outside {part}"
            raise BadData(what, where=where, fix="mend its pieces, or the spaces that they announce")


def choices_of(space: Space) -> tuple[Any, Any]:
    """The least and the largest choice of a leaf space; None for both where it has no choices."""
    match space:
        case spaces.Discrete():
            return int(space.start), int(space.start) + int(space.n) - 1
        case spaces.MultiDiscrete():
            return space.start, np.add(space.start, space.nvec, dtype=np.int64) - 1
        case spaces.MultiBinary():
            return 0, 1
    return None, None
