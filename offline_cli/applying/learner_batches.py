"""Episodes as a learner pipeline gets them, for `train-bc` and `apply` alike, and what it makes of them.

One policy learns from the episodes of one module. Episodes without steps teach nothing and are left out, and so are extra
outputs that are text. Box actions come in the units of networks, as RLlib's pieces know them; an unknown scale is an error.
Episodes are grouped until they have the steps that are asked for, so that a group depends on the episodes and their order
alone, and not on how they were read. Rows that `loss_mask` marks as False are never learned from, nor validated on.

`FrameStacks` keeps single frames, from which batches gather their stacks: FrameStacking makes each observation N times as large
as the frame that it adds. Where all pieces after it leave observations alone (`stack_by_rows`), the piece says instead which
frame each step ends with, and how many frames of its episode come before it: `FrameStacks` holds every frame once, and
`gather_stacks` puts stacks into tensors, on whatever device the frames are. Values are those of the piece, bit for bit: the
oldest frame first, zeros before the first one.
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


PLACE: Final = "learner pipeline"
UNREWARDED: Final = "or learn with `train-bc`, which needs no rewards"
MAX_NAMED: Final = 10  # modules in one message
PART_BYTES: Final = 1 << 20  # of the episodes that go through a pipeline together, unless one alone is larger


def learner_spaces(stream: EpisodeStream, environment: Environment | None) -> tuple[Space, Space]:
    """The spaces of a stream; the environment's where there is one: its bounds are what the policy will see.

    Raises BadConfig where the scale of Box actions is unknown, SpaceMismatch where a policy for the data could not play in
    `environment`. Nothing is read.
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
        fix = f"name the environment that the data is from, wrapped as it was, instead of --env {environment.name}"
        raise SpaceMismatch.of(problems, where=where, fix=fix)
    return own


def with_steps(episodes: EpisodeBatch) -> EpisodeBatch:
    """The episodes that have a step, with those of their extra outputs that are numbers."""
    numbers = {name: leaf for name, leaf in episodes.extra.items() if all(part.dtype.kind in "biuf" for part in leaves(leaf))}
    episodes = replace(episodes, extra=numbers)
    moving = np.flatnonzero(np.diff(episodes.starts))
    return episodes if len(moving) == len(episodes) else episodes.select(moving)


def in_learner_units(episodes: EpisodeBatch, action_space: Space, action_scale: str) -> EpisodeBatch:
    """`episodes`, whose actions are of `action_space`, with actions as a network learns them."""
    learned = in_network_units(episodes.actions, action_space, action_scale=action_scale)
    return replace(episodes, actions=learned, action_space=network_space(action_space))


def of_one_module(
    batches: Iterable[EpisodeBatch], agent: str | None, module: str | None, *, where: str, seen: Counter[str]
) -> Iterator[EpisodeBatch]:
    """Those of `batches` that `agent` acted in (None: any) by module `module`; None: all, where they are of one module. An
    episode without a module id is of the module `default_policy`.

    At the end of the data raises BadConfig where it has none of the agent or the module, or several modules and `module` is
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
        what = f"no episode is of agent {agent!r}: the data holds episodes of {listed}"
        raise BadConfig(what, where=where, fix=f"--agent {shlex.quote(next(filter(None, agents), ''))}, or leave it out")
    if seen and (len(seen) > 1 if module is None else module not in seen):
        listed = ", ".join(f"{name} ({count})" for name, count in seen.most_common(MAX_NAMED))
        what = f"{len(seen)} modules, of which one run learns one" if module is None else f"no episode is of module {module!r}"
        raise BadConfig(f"{what}: the data holds {listed}", where=where, fix=f"--module-id {shlex.quote(next(iter(seen)))}")


# ---- batches ----


def grouped(batches: Iterable[EpisodeBatch], steps: int) -> Iterator[EpisodeBatch]:
    """Batches of whole episodes, in order, of at least `steps` steps each; the last one may have fewer."""
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
    """As many episodes at a time as follows from the episodes alone, and not from how they are read."""
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
    """After each piece its unique name, the batch, and the episodes as later pieces see them.

    Raises BadPiece, with the names of the piece and of the first episode, for whatever a piece raises; our own errors keep
    their class and say the episode too. `where` names the sources.
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
    except Exception as err:  # pieces may be the user's own, and raise whatever they like
        name = pending[0] if pending else type(pipeline).__name__
        fix = "`offline-cli apply --trace 1` shows the batch before this piece, --debug where it raised"
        raise BadPiece(f"piece {name} raised {what_it_wants(err)}", where=f"piece {name}, {place}", fix=fix) from err


def through(pipeline: ConnectorPipelineV2, episodes: EpisodeBatch, *, where: str, rl_module: Any = None) -> Batch:
    """The train batch of `episodes`. Raises as `stepped` does."""
    made: Batch = {}
    with playing(rl_module) as module:
        for _, batch, _ in stepped(pipeline, episodes, where=where, rl_module=module):
            made = batch
    return made


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

    For a `rl_module` with memory they are sequences (B, T, ...), and `loss_mask` (B, T) besides says which steps are learned
    from; choices that pad are those of the first step, so that each is one. Observations and actions are of the spaces that the
    pipeline `announced`. `rl_module`: for pieces that compute values or states with it, without gradients.

    Raises BadPiece for what a piece raises; BadConfig for columns that are missing, not stacked, or of other shapes than
    announced; BadData for numbers that no policy could learn from. `where` names the data.
    """
    space_of = {Columns.OBS: announced[0], Columns.NEXT_OBS: announced[0], Columns.ACTIONS: announced[1]}
    batch = through(pipeline, episodes, where=where, rl_module=rl_module)
    axes, by_rows = 2 if rl_module is not None and is_stateful(rl_module) else 1, FRAMES in batch
    if axes == 2 and not {Columns.LOSS_MASK, Columns.SEQ_LENS}.issubset(batch):
        what = f"a policy with memory learns from sequences, and the pipeline gives {sorted(map(str, batch))}"
        raise BadConfig(what, where=PLACE, fix="keep the default pieces (defaults = true), which cut episodes into sequences")
    stacked = (Columns.OBS, Columns.NEXT_OBS) if by_rows else ()
    columns = {name: _column(batch, name, None if name in stacked else space_of.get(name), axes) for name in asked}
    columns |= {AGES: as_tensors(AGES, batch[AGES])} if by_rows else {}
    lengths = {path: len(leaf) if leaf.ndim else 0 for path, leaf in flatten(columns)}
    if len(set(lengths.values())) > 1:
        what = f"the pipeline gave columns of different numbers of rows: {lengths}"
        raise BadConfig(what, where=PLACE, fix="one row per step in every column that a piece adds")
    if axes == 2:
        columns = _sequences(columns, batch)
    elif Columns.LOSS_MASK in batch:
        mask, recorded = _column(batch, Columns.LOSS_MASK).bool(), episodes.extra.get(Columns.LOSS_MASK)
        columns = _unmasked(columns, mask)
        if recorded is not None and len(mask) > int(mask.sum()) == episodes.num_steps:  # a piece marked steps that it added
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
    """A column as tensors, in the announced structure, behind so many `axes`; None: the pipeline announced none. Raises
    BadConfig for another, and for one that is missing or not stacked.
    """
    held = batch.get(name)
    if held is None or is_filed(held):
        given = sorted(str(column) for column in batch if column not in (AGES, FRAMES))
        what = f"no {name!r}, but {given}" if held is None else f"{name!r} as items by episode that are not stacked"
        fix = "keep the default pieces (defaults = true), or list pieces that make this column, and batch_individual_items last"
        raise BadConfig(f"the pipeline gives {what}", where=PLACE, fix=fix)
    if space is None:
        return as_tensors(name, held)
    tree = as_tensors(name, tree_from_lists(held, space))
    check_announced(tree, name, space, axes=axes)
    return tree


def check_announced(tree: Tree, name: str, space: Space, *, axes: int = 1) -> None:
    """Raise BadConfig where column `name`, leaves (N, ...), has rows of other shapes than those of the announced `space`.

    `axes`: 2 for sequences (B, T, ...).
    """
    shapes = {path: tuple(leaf.shape[axes:]) for path, leaf in flatten(tree, name)}
    announced = {path: tuple(leaf.shape or ()) for path, leaf in leaf_spaces(space, name).items()}
    if shapes != announced:
        what = f"the pipeline gave rows of {shapes}, and announced {announced}"
        fix = "a piece that changes shapes says so in recompute_output_observation_space or recompute_output_action_space"
        raise BadConfig(what, where=PLACE, fix=fix)


def _unmasked(columns: dict[str, Tree], kept: Tensor) -> dict[str, Tree]:
    """The rows that are `kept`. Raises BadConfig for a mask of another shape."""
    rows = len(leaves(next(iter(columns.values())))[0])
    if kept.shape != (rows,):
        what = f"{Columns.LOSS_MASK!r} of shape {tuple(kept.shape)} for {rows} rows"
        raise BadConfig(what, where=PLACE, fix="one value per row in every column that a piece adds")
    return columns if bool(kept.all()) else {name: map_leaves(lambda leaf: leaf[kept], tree) for name, tree in columns.items()}


def _sequences(columns: dict[str, Tree], batch: Batch) -> dict[str, Tree]:
    """Those sequences of the columns that have a step to learn from, and their `loss_mask`."""
    mask = _column(batch, Columns.LOSS_MASK).bool()
    there = torch.arange(mask.shape[1]) < _column(batch, Columns.SEQ_LENS)[:, None]
    kept = mask.any(1)

    def padded(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            leaf = torch.where(there.reshape(*there.shape, *[1] * (leaf.ndim - 2)), leaf, leaf[:, :1])
        return leaf if bool(kept.all()) else leaf[kept]

    return {name: map_leaves(padded, tree) for name, tree in columns.items()} | {Columns.LOSS_MASK: mask[kept]}


# ---- whether values can be learned from ----


def _broken(values: NDArray[Any], space: Space | None) -> tuple[NDArray[np.bool_], str] | None:
    """Which `values` (N, ...) no policy could learn from, and what they are: not finite, or outside the choices of a leaf
    space. None: none can be."""
    if values.dtype.kind == "f":
        return ~np.isfinite(values), "NaN or infinity"
    if space is None or isinstance(space, spaces.Box):
        return None
    low, high = category_bounds(space)
    return (values < low) | (values > high), f"choices outside {space}"


def _check_column(column: Any, name: str, space: Space | None, where: str) -> None:
    """Raise BadData where a column after the pipeline has numbers that are not finite, or choices outside `space`."""
    tree, rows = (column.frames, column.rows.numpy()) if isinstance(column, FrameStacks) else (column, slice(None))
    found, problems = list(flatten(tree, name)), []
    parts = [None] * len(found) if space is None or isinstance(column, FrameStacks) else leaf_spaces(space).values()
    for (path, leaf), part in zip(found, parts, strict=True):
        broken = _broken(leaf.numpy(), part)
        if broken is not None and broken[0][rows].any():
            problems.append(f"{path} hold {broken[1]}")
    if problems:
        fix = "fix its pieces, their spaces, or the scale of the data: numbers are float32 here"
        raise BadData(f"after the learner pipeline {'; '.join(problems)}", where=where, fix=fix)


def check_rewards(episodes: EpisodeBatch, where: str) -> None:
    """Raise BadData, naming the first episode and step, for rewards that are not finite."""
    wrong = ~np.isfinite(episodes.rewards)
    if wrong.any():
        counted = f"{np.count_nonzero(wrong):,} of {wrong.size:,} steps"
        what = f"rewards hold NaN or infinity in {counted}, first in {place_of_first(episodes, wrong)}"
        raise BadData(what, where=where, fix=f"take such episodes out of the recording; {UNREWARDED}")


def check_values(episodes: EpisodeBatch, space: Space, name: str, where: str, meanings: Meanings) -> None:
    """Raise BadData, naming episode and step, where `name`, "observations" acted on or "actions", are not finite, or no choice
    of `space`."""
    of_observations, parts = name == "observations", leaf_spaces(space).values()
    tree = episodes.obs if of_observations else episodes.actions
    if all(leaf.dtype.kind == "u" for leaf in leaves(tree)) and all(isinstance(part, spaces.Box) for part in parts):
        return  # images, in which nothing can be wrong
    tree = episodes.acted_obs() if of_observations else tree
    for (path, leaf), part in zip(flatten(tree_from_lists(tree, space), name), parts, strict=True):
        wrong, what = _broken(leaf, part) or (np.zeros(0, np.bool_), "")
        if wrong.any():
            at = [int(index) for index in np.unravel_index(int(np.argmax(wrong)), wrong.shape)[1:]]
            which = meanings.column(path, at, wrong.shape[1:])  # `, column joint_a`, where columns have names
            fix = "take such steps out of the recording, or convert it again with the right spaces"
            raise BadData(f"{path} hold {what}, first in {place_of_first(episodes, wrong)}{which}", where=where, fix=fix)


def place_of_first(episodes: EpisodeBatch, wrong: NDArray[np.bool_]) -> str:
    """Where the first of the steps (N, ...) that are `wrong` is."""
    step = int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))
    episode = int(np.searchsorted(episodes.starts, step, side="right")) - 1
    return f"episode {episodes.ids[episode]}, step {step - int(episodes.starts[episode])}"
