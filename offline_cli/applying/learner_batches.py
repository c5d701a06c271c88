"""Input and output of a learner pipeline, shared by `train-bc` and `apply`.

One policy learns from the episodes of one module. Episodes without steps, and extra outputs that are strings, are left out. Box
actions are in network units, as in RLlib's learner pipelines; an unknown scale is an error. Groups of episodes depend only on
the episodes and their order, not on how they were read. Rows with `loss_mask` False are excluded from training and validation.

FrameStacking makes each observation N times as large as its newest frame. If no later piece reads observations
(`stack_by_rows`), the piece returns indices instead: the newest frame of each step, and the number of frames before it in its
episode. `FrameStacks` then stores each frame once, and `gather_stacks` builds the stacks of a batch on the frames' device,
equal bit for bit to the piece's: oldest frame first, zeros before the first one.
"""

from __future__ import annotations

import copy
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Self

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.common.batching import as_tensors
from offline_cli.connectors.common.frame_stacking import AGES, FRAMES, FrameStacking
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch, Episodes, what_it_wants
from offline_cli.connectors.learner.added_columns import (
    AddNextActionsFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    default_pieces,
)
from offline_cli.connectors.learner.returns import ClipRewards, ComputeReturnsToGo
from offline_cli.converting.fitting import misfits
from offline_cli.converting.reading import EpisodeStream
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.episode_spaces import category_bounds
from offline_cli.errors import BadConfig, BadData, BadPiece, OfflineCliError, SpaceMismatch
from offline_cli.formats.source import UNKNOWN_SCALE
from offline_cli.meanings import Meanings
from offline_cli.modules.distributions import check_scale, in_network_units, network_space
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID, evaluating, is_stateful
from offline_cli.spaces import Space, leaf_spaces, tree_from_lists
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = [
    "UNREWARDED",
    "FrameStacks",
    "check_announced",
    "check_rewards",
    "check_values",
    "gather_stacks",
    "grouped",
    "in_learner_units",
    "in_parts",
    "learner_columns",
    "learner_spaces",
    "of_one_module",
    "place_of_first",
    "playing",
    "stack_by_rows",
    "stepped",
    "through",
    "with_steps",
]


MOST: Final = 255  # maximum frames of a stack, because ages are uint8
LEAVE_OBSERVATIONS: Final = (  # pieces that do not read `obs` of a stateless module
    AddNextObservationsFromEpisodesToTrainBatch,
    AddNextActionsFromEpisodesToTrainBatch,
    ClipRewards,
    ComputeReturnsToGo,
)


def stack_by_rows(pipeline: ConnectorPipelineV2) -> FrameStacking | None:
    """Switch the pipeline's FrameStacking to row indices (`by_rows`) if no later piece reads observations; return it, or None.
    `new_obs` are then row indices too.
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
    rows: Tensor  # (N,) int64: index of the newest frame
    ages: Tensor  # (N,) uint8: number of frames before it in its episode, at most size - 1
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
        """Size of the indices, without the frames, which other stacks may share."""
        return self.rows.nbytes + self.ages.nbytes

    def next_ones(self, rows: Tensor) -> Self:
        """The stacks one step later, whose newest frames are `rows` (N,)."""
        return replace(self, rows=rows, ages=(self.ages + 1).clamp(max=self.size - 1))


def gather_stacks(
    take: Callable[[Tensor], Sequence[Tensor]], rows: Tensor, ages: Tensor, size: int, targets: Sequence[Tensor]
) -> None:
    """Write the stacks whose newest frames are `rows` (B,) into `targets`. `take` returns the frames at indices, by leaf."""
    for place in range(size):
        back = size - 1 - place
        gone = ages < back
        for found, target in zip(take(rows - ages.clamp(max=back)), targets, strict=True):
            found.masked_fill_(gone.view(-1, *[1] * (found.ndim - 1)), 0)
            shape = tuple(found.shape[1:])
            places, width = (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)
            target.view(len(rows), places, size, width)[:, :, place].copy_(found.view(len(rows), places, width))


PLACE: Final = "learner pipeline"
UNREWARDED: Final = "or use `train-bc`, which needs no rewards"
MAX_NAMED: Final = 10  # modules in one message
PART_BYTES: Final = 1 << 20  # size of the episodes in one pipeline call, unless one episode is larger


def learner_spaces(stream: EpisodeStream, environment: Environment | None) -> tuple[Space, Space]:
    """The environment's spaces, whose bounds the policy will play with; without an environment the stream's.

    Raises BadConfig if the scale of Box actions is unknown, SpaceMismatch if a policy for the data cannot play in
    `environment`. Reads no data.
    """
    where, said = ", ".join(stream.locations), (stream.observation_space, stream.action_space)
    if stream.action_scale == UNKNOWN_SCALE:
        check_scale(stream.action_scale, where=where)
    if environment is None:
        return said
    own = environment.observation_space, environment.action_space
    pairs = zip(("observations", "actions"), said, own, strict=True)
    problems = [text for what, space, env in pairs for text in misfits(space, env, inferred=stream.spaces_inferred, what=what)]
    if problems:
        fix = f"use the environment and wrappers of the data instead of {environment.name}"
        raise SpaceMismatch.of(problems, where=where, fix=fix)
    return own


def with_steps(episodes: EpisodeBatch) -> EpisodeBatch:
    """The non-empty episodes, with only their numeric extra outputs."""
    numbers = {name: leaf for name, leaf in episodes.extra.items() if all(part.dtype.kind in "biuf" for part in leaves(leaf))}
    episodes = replace(episodes, extra=numbers)
    moving = np.flatnonzero(np.diff(episodes.starts))
    return episodes if len(moving) == len(episodes) else episodes.select(moving)


def in_learner_units(episodes: EpisodeBatch, action_space: Space, action_scale: str) -> EpisodeBatch:
    """`episodes` with actions of `action_space` converted to network units."""
    learned = in_network_units(episodes.actions, action_space, action_scale=action_scale)
    return replace(episodes, actions=learned, action_space=network_space(action_space))


def of_one_module(
    batches: Iterable[EpisodeBatch], agent: str | None, module: str | None, *, where: str, seen: Counter[str]
) -> Iterator[EpisodeBatch]:
    """The episodes of `agent` (None: any) and `module` (None: the only module). Episodes without a module id belong to
    `default_policy`.

    At the end of the data raises BadConfig if it has no episodes of the agent or module, or several modules and `module` is
    None. `seen` counts the agent's episodes by module.
    """
    agents = Counter[str | None]()
    for batch in batches:
        acted_by = batch.agent_ids or (None,) * len(batch)
        names = [name or DEFAULT_MODULE_ID for name in batch.module_ids or (None,) * len(batch)]
        agents.update(acted_by)
        mine = [agent in (None, name) for name in acted_by]
        seen.update(name for name, is_mine in zip(names, mine, strict=True) if is_mine)
        which = np.flatnonzero([is_mine and module in (None, name) for name, is_mine in zip(names, mine, strict=True)])
        if len(which) and (module is not None or len(seen) == 1):
            yield batch if len(which) == len(batch) else batch.select(which)
    if agents and not seen:
        listed = ", ".join(f"{name or 'without an agent id'} ({count})" for name, count in agents.most_common(MAX_NAMED))
        what = f"no episodes of agent {agent!r}; the data holds episodes of {listed}"
        raise BadConfig(what, where=where, fix=f"use --agent {shlex.quote(next(filter(None, agents), ''))}, or leave it out")
    if seen and (len(seen) > 1 if module is None else module not in seen):
        listed = ", ".join(f"{name} ({count})" for name, count in seen.most_common(MAX_NAMED))
        what = f"{len(seen)} modules, but a run learns one" if module is None else f"no episodes of module {module!r}"
        raise BadConfig(f"{what}: the data holds {listed}", where=where, fix=f"use --module-id {shlex.quote(next(iter(seen)))}")


# ---- batches ----


def grouped(batches: Iterable[EpisodeBatch], steps: int) -> Iterator[EpisodeBatch]:
    """Regroup whole episodes, in order, into batches of at least `steps` steps; the last batch may have fewer."""
    pending: list[EpisodeBatch] = []
    missing = steps
    for batch in batches:
        ends, first = batch.starts[1:], 0
        while first < len(batch):
            before = int(batch.starts[first])
            stop = min(len(batch), int(np.searchsorted(ends, before + missing)) + 1)
            pending.append(batch.select(slice(first, stop)))
            missing -= int(batch.starts[stop]) - before
            first = stop
            if missing <= 0:
                yield EpisodeBatch.concat(pending)
                pending, missing = [], steps
    if pending:
        yield EpisodeBatch.concat(pending)


def in_parts(batches: Iterable[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    """Regroup episodes into parts of about PART_BYTES, which do not depend on how the episodes were read."""
    given = iter(batches)
    for first in given:
        trees = (first.obs, first.actions, *first.extra.values())
        row = sum(leaf.nbytes // len(leaf) for tree in trees for leaf in leaves(tree))
        whole = chain([first], given)
        del first
        yield from grouped(whole, max(1, PART_BYTES // max(1, row)))


def stepped(
    pipeline: ConnectorPipelineV2, episodes: EpisodeBatch, *, where: str, rl_module: Any = None
) -> Iterator[tuple[str, Batch, Episodes]]:
    """Run piece by piece; yield the piece's unique name, the batch, and the episodes that later pieces see.

    Raises BadPiece, naming the piece and the first episode, for any exception of a piece; our own errors keep their class and
    also name the episode. `where` names the sources.
    """
    place = f"train batch from episode {episodes.ids[0]} of {where}"
    pending = [name for name, _ in pipeline.named()]
    try:
        for step in pipeline.stepwise(episodes=episodes, rl_module=rl_module):
            pending.pop(0)
            yield step
    except OfflineCliError as err:
        err.where = f"{err.where}, {place}"
        raise
    except MemoryError:
        raise
    except Exception as err:  # user pieces may raise anything
        name = pending[0] if pending else type(pipeline).__name__
        fix = "`offline-cli apply --trace 1` shows the batch before this piece; --debug shows the traceback"
        raise BadPiece(f"piece {name} raised {what_it_wants(err)}", where=f"piece {name}, {place}", fix=fix) from err


def through(pipeline: ConnectorPipelineV2, episodes: EpisodeBatch, *, where: str, rl_module: Any = None) -> Batch:
    """The train batch of `episodes`. Raises like `stepped`."""
    made: Batch = {}
    with playing(rl_module) as module:
        for _, batch, _ in stepped(pipeline, episodes, where=where, rl_module=module):
            made = batch
    return made


@contextmanager
def playing(rl_module: nn.Module | None) -> Iterator[nn.Module | None]:
    """Context manager: the module for pieces, on the CPU (a copy if it is elsewhere), without gradients and in evaluation mode,
    because its outputs are data.
    """
    if rl_module is None:
        yield None
        return
    if any(parameter.device.type != "cpu" for parameter in rl_module.parameters()):
        rl_module = copy.deepcopy(rl_module).cpu()
    with evaluating(rl_module), torch.no_grad():
        yield rl_module


# ---- columns ----


def learner_columns(
    pipeline: ConnectorPipelineV2,
    episodes: EpisodeBatch,
    announced: tuple[Space, Space],
    *,
    where: str,
    asked: Sequence[str] = (Columns.OBS, Columns.ACTIONS),
    rl_module: nn.Module | None = None,
) -> dict[str, Any]:
    """The columns `asked` for, in that order, as trees of tensors (N, ...) on the CPU, or FrameStacks.

    For a recurrent `rl_module` they are sequences (B, T, ...), and `loss_mask` (B, T) marks the steps to learn from; padded
    choices repeat the first step's, so that they are valid. Observations and actions must fit the pipeline's `announced` output
    spaces. `rl_module`: for pieces that compute values or states with it, without gradients.

    Raises BadPiece if a piece raises; BadConfig for columns that are missing, not stacked, or of other shapes than announced;
    BadData for non-finite values, and choices outside the space. `where` names the data.
    """
    space_of = {Columns.OBS: announced[0], Columns.NEXT_OBS: announced[0], Columns.ACTIONS: announced[1]}
    batch = through(pipeline, episodes, where=where, rl_module=rl_module)
    axes, by_rows = 2 if rl_module is not None and is_stateful(rl_module) else 1, FRAMES in batch
    if axes == 2 and not {Columns.LOSS_MASK, Columns.SEQ_LENS}.issubset(batch):
        what = f"a recurrent policy learns from sequences, but the pipeline returns {sorted(map(str, batch))}"
        raise BadConfig(what, where=PLACE, fix="keep the default pieces (defaults = true), which cut episodes into sequences")
    stacked = (Columns.OBS, Columns.NEXT_OBS) if by_rows else ()
    columns = {name: _column(batch, name, None if name in stacked else space_of.get(name), axes) for name in asked}
    columns |= {AGES: as_tensors(AGES, batch[AGES])} if by_rows else {}
    lengths = {path: len(leaf) if leaf.ndim else 0 for path, leaf in flatten(columns)}
    if len(set(lengths.values())) > 1:
        what = f"the pipeline returned columns of different lengths: {lengths}"
        raise BadConfig(what, where=PLACE, fix="add one row per step to every column")
    if axes == 2:
        columns = _sequences(columns, batch)
    elif Columns.LOSS_MASK in batch:
        mask, recorded = _column(batch, Columns.LOSS_MASK).bool(), episodes.extra.get(Columns.LOSS_MASK)
        columns = _unmasked(columns, mask)
        if (
            recorded is not None and len(mask) > int(mask.sum()) == episodes.num_steps
        ):  # the mask is a piece's, for the steps it added
            columns = _unmasked(columns, as_tensors(Columns.LOSS_MASK, recorded).bool())
    if by_rows:
        size = next(piece.num_frames for piece in pipeline.pieces() if isinstance(piece, FrameStacking))
        frames = tree_from_lists(as_tensors(FRAMES, batch[FRAMES]), announced[0])
        stacks = columns[Columns.OBS] = FrameStacks(frames, columns[Columns.OBS], columns.pop(AGES), size)
        if Columns.NEXT_OBS in columns:
            columns[Columns.NEXT_OBS] = stacks.next_ones(columns[Columns.NEXT_OBS])
    for name, column in columns.items():
        _check_column(column, name, space_of.get(name), where)
    return columns


def _column(batch: Mapping[str, Any], name: str, space: Space | None = None, axes: int = 1) -> Tree:
    """A column as tensors in the structure of `space` (None: unknown), after `axes` leading axes. Raises BadConfig for another
    structure, and for a column that is missing or not stacked.
    """
    held = batch.get(name)
    if held is None or is_filed(held):
        given = sorted(str(column) for column in batch if column not in (AGES, FRAMES))
        what = f"no {name!r}, only {given}" if held is None else f"{name!r} as items that are not stacked"
        fix = "keep the default pieces (defaults = true), or list pieces that make this column, and batch_individual_items last"
        raise BadConfig(f"the pipeline returns {what}", where=PLACE, fix=fix)
    if space is None:
        return as_tensors(name, held)
    tree = as_tensors(name, tree_from_lists(held, space))
    check_announced(tree, name, space, axes=axes)
    return tree


def check_announced(tree: Tree, name: str, space: Space, *, axes: int = 1) -> None:
    """Raise BadConfig if the rows of column `name`, leaves (N, ...), differ in shape from the announced `space`.

    `axes`: 2 for sequences (B, T, ...).
    """
    shapes = {path: tuple(leaf.shape[axes:]) for path, leaf in flatten(tree, name)}
    announced = {path: tuple(leaf.shape or ()) for path, leaf in leaf_spaces(space, name).items()}
    if shapes != announced:
        what = f"the pipeline returned rows of {shapes}, but declared {announced}"
        fix = "declare changed shapes in recompute_output_observation_space or recompute_output_action_space"
        raise BadConfig(what, where=PLACE, fix=fix)


def _unmasked(columns: dict[str, Tree], kept: Tensor) -> dict[str, Tree]:
    """The rows that are `kept`. Raises BadConfig for a mask of another shape."""
    rows = len(leaves(next(iter(columns.values())))[0])
    if kept.shape != (rows,):
        what = f"{Columns.LOSS_MASK!r} has shape {tuple(kept.shape)}, but there are {rows} rows"
        raise BadConfig(what, where=PLACE, fix="add one value per row to every column")
    return columns if bool(kept.all()) else {name: map_leaves(lambda leaf: leaf[kept], tree) for name, tree in columns.items()}


def _sequences(columns: dict[str, Tree], batch: Batch) -> dict[str, Tree]:
    """The sequences with at least one step to learn from, and their `loss_mask`."""
    mask = _column(batch, Columns.LOSS_MASK).bool()
    there = torch.arange(mask.shape[1]) < _column(batch, Columns.SEQ_LENS)[:, None]
    kept = mask.any(1)

    def padded(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            leaf = torch.where(there.reshape(*there.shape, *[1] * (leaf.ndim - 2)), leaf, leaf[:, :1])
        return leaf if bool(kept.all()) else leaf[kept]

    return {name: map_leaves(padded, tree) for name, tree in columns.items()} | {Columns.LOSS_MASK: mask[kept]}


# ---- checks of values ----


def _broken(values: NDArray[Any], space: Space | None) -> tuple[NDArray[np.bool_], str] | None:
    """A mask of invalid `values` (N, ...), and a description: non-finite, or outside the choices of a leaf space. None if none
    can be invalid."""
    if values.dtype.kind == "f":
        return ~np.isfinite(values), "NaN or infinity"
    if space is None or isinstance(space, spaces.Box):
        return None
    low, high = category_bounds(space)
    return (values < low) | (values > high), f"choices outside {space}"


def _check_column(column: Any, name: str, space: Space | None, where: str) -> None:
    """Raise BadData if a column after the pipeline has non-finite numbers, or choices outside `space`."""
    tree, rows = (column.frames, column.rows.numpy()) if isinstance(column, FrameStacks) else (column, slice(None))
    found, problems = list(flatten(tree, name)), []
    parts = [None] * len(found) if space is None or isinstance(column, FrameStacks) else leaf_spaces(space).values()
    for (path, leaf), part in zip(found, parts, strict=True):
        broken = _broken(leaf.numpy(), part)
        if broken is not None and broken[0][rows].any():
            problems.append(f"{path} has {broken[1]}")
    if problems:
        fix = "fix the pieces, their spaces, or the scale of the data: columns are float32"
        raise BadData(f"after the learner pipeline, {'; '.join(problems)}", where=where, fix=fix)


def check_rewards(episodes: EpisodeBatch, where: str) -> None:
    """Raise BadData, naming the first episode and step, for non-finite rewards."""
    wrong = ~np.isfinite(episodes.rewards)
    if wrong.any():
        counted = f"{np.count_nonzero(wrong):,} of {wrong.size:,} steps"
        what = f"rewards hold NaN or infinity in {counted}, first in {place_of_first(episodes, wrong)}"
        raise BadData(what, where=where, fix=f"remove such episodes; {UNREWARDED}")


def check_values(episodes: EpisodeBatch, space: Space, name: str, where: str, meanings: Meanings) -> None:
    """Raise BadData, naming episode and step, if `name`, "observations" acted on or "actions", has non-finite values, or
    choices outside `space`."""
    of_observations, parts = name == "observations", leaf_spaces(space).values()
    tree = episodes.obs if of_observations else episodes.actions
    if all(leaf.dtype.kind == "u" for leaf in leaves(tree)) and all(isinstance(part, spaces.Box) for part in parts):
        return  # uint8 Box values are always valid
    tree = episodes.acted_obs() if of_observations else tree
    for (path, leaf), part in zip(flatten(tree_from_lists(tree, space), name), parts, strict=True):
        wrong, what = _broken(leaf, part) or (np.zeros(0, np.bool_), "")
        if wrong.any():
            at = [int(index) for index in np.unravel_index(int(np.argmax(wrong)), wrong.shape)[1:]]
            which = meanings.column(path, at, wrong.shape[1:])  # `, column joint_a`, where columns have names
            fix = "remove such steps, or convert the data again with the right spaces"
            raise BadData(f"{path} has {what}, first in {place_of_first(episodes, wrong)}{which}", where=where, fix=fix)


def place_of_first(episodes: EpisodeBatch, wrong: NDArray[np.bool_]) -> str:
    """Episode and step of the first True in `wrong` (N, ...)."""
    step = int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))
    episode = int(np.searchsorted(episodes.starts, step, side="right")) - 1
    return f"episode {episodes.ids[episode]}, step {step - int(episodes.starts[episode])}"
