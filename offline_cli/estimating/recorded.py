"""Recorded episodes as the policy of a run sees them: after its connector pieces, whole episodes in order.

The episodes go through the run's learner pipeline, with what its pieces learned, frozen. Each gets one more step at its end,
whose row shows the policy the last observation. A policy with memory sees each episode as one sequence, from its initial state
on.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_cli.applying.learner_batches import (
    check_values,
    grouped,
    in_learner_units,
    learner_columns,
    learner_spaces,
    of_one_module,
    with_steps,
)
from offline_cli.choices import Behaviour
from offline_cli.columns import Columns
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.converting.fitting import ExtraOutputs
from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, NoData, UsageError
from offline_cli.formats.tables.mapping import given_mapping
from offline_cli.formats.tables.source import TableOptions
from offline_cli.meanings import Meanings
from offline_cli.modules.rl_module import RLModule, evaluating, initial_state
from offline_cli.policies.policy import stand_in
from offline_cli.policies.run_policy import LoadedPolicy, environment_spaces
from offline_cli.progress import OnProgress
from offline_cli.spaces import Space
from offline_cli.storage.locations import Sources
from offline_cli.training.chosen_episodes import HeldOut, best_episodes, content_hashes
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.training_data import REMEMBERED
from offline_cli.trees import Tree, leaves, map_leaves, rows_of

__all__ = ["Recorded", "recorded_for"]

STEPS: Final = 1 << 16  # of the episodes that go through the pipeline together
ROWS: Final = 1 << 14  # that go through the network together
USED: Final = (Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS)
BY_CHANCE: Final = 0.05  # share of short episodes that may be those of a run with the same ids and be others
ONE_KIND: Final = "--behaviour fit or uniform, which need no such column; or leave out the source"


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """E episodes of N steps in all."""

    episodes: EpisodeBatch  # as recorded, Box actions in the units of networks
    observations: Tree  # tensors (N+E, ...): what the policy sees, the last ones of episodes too
    actions: Tree  # tensors (N, ...): as the policy gives them
    inputs: Tensor  # (N+E, size) of the policy's action distribution at each observation
    module: RLModule
    space: Space  # of actions, in the environment's units
    action_scale: str
    meanings: Meanings
    has_rewards: bool  # else there is nothing to estimate
    held_out: bool | None  # whether the run held them out; None: it learned from other data
    left_out: Mapping[str, Mapping[str, int]]  # episodes with NaN or infinite numbers, which are not among these, by column
    doubts: Sequence[str]  # why no estimate is reliable
    notes: Sequence[str]

    @property
    def acted(self) -> Tensor:
        """(N,) which of the N+E observations were acted on."""
        last = self.episodes.obs_starts[1:] - 1
        return torch.from_numpy(np.delete(np.arange(self.episodes.num_steps + len(self.episodes)), last))


def recorded_for(
    loaded: LoadedPolicy,
    folder: RunFolder,
    sources: Sources,
    *,
    behaviour: Behaviour,
    explore: bool,
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None,
    module_id: str | None,
    device: torch.device,
    storage_options: Mapping[str, Any] | None,
    on_progress: OnProgress,
) -> Recorded:
    """Read `sources` for the policy of the run in `folder`. `module_id`: whose episodes; None: the run's.

    Of all that the run learned from the episodes that it held out are taken, if it held some out. Probabilities are read if
    they are the `behaviour`. Raises what `read_episodes` raises, NoData; SpaceMismatch where the data is of another
    environment; BadConfig for a run whose pieces Python code made, and for pieces that give other rows than a step each;
    BadPiece; BadData.
    """
    own, config = stand_in(f"run {folder.url}", environment_spaces(loaded, folder.url)), folder.config() or {}
    used, scale = USED if behaviour == "recorded" else (), loaded.description["action_scale"]
    reading: dict[str, Any] = {
        "env_spaces": (own.observation_space, own.action_space),
        "tables": TableOptions(None if mapping is None else given_mapping(mapping)),
        "extras": (lambda _: ExtraOutputs(used, fix=ONE_KIND)) if loaded.trained is None else None,
        "storage_options": storage_options,
        "on_progress": on_progress,
    }
    try:
        stream = read_episodes(sources, action_scale=None if scale == "unknown" else scale, **reading)
    except UsageError:  # the sources declare another scale, which is converted
        stream = read_episodes(sources, **reading)
    with stream:
        where, spaces = ", ".join(stream.locations), learner_spaces(stream, own)
        module_id = module_id or loaded.description.get("module")
        batches = filter(len, map(with_steps, stream))
        found = [*of_one_module(batches, config.get("agent"), module_id, where=where, seen=Counter())]
        if not found:
            raise NoData("no episode has any steps", where=where, fix="name recordings with steps")
        whole, has_rewards = EpisodeBatch.concat(found), stream.without_rewards is None
    held_out, which, doubts = _held_out(folder, config, whole, where)
    notes = [*stream.incomplete, *doubts]
    if held_out is False and not doubts:
        notes.append("the run learned from these episodes: its figures are better than on others (train --val-fraction)")
    whole = whole if which is None else whole.select(np.flatnonzero(which))
    complete, left_out = _complete(whole, used, has_rewards=has_rewards)
    if left_out:
        named = ", ".join(f"{name} at {one['steps']:,} steps of {one['episodes']:,} episodes" for name, one in left_out.items())
        doubts = [*doubts, f"NaN or infinite: {named}"]
        notes.append(f"{doubts[-1]}; these episodes are left out, which shifts estimates if that hangs on outcomes")
        whole, has_rewards = whole.select(complete) if len(complete) else whole, bool(len(complete))
    whole = replace(whole, extra={name: tree for name, tree in whole.extra.items() if name in used or loaded.trained})
    for name, space in zip(("observations", "actions"), spaces, strict=True):
        check_values(whole, space, name, where, stream.meanings)
    whole = in_learner_units(whole, spaces[1], stream.action_scale)
    pipeline, module = _pipeline(loaded, spaces, folder.url), loaded.module.to(device).eval()
    parts = [*_seen(module, pipeline, whole, spaces, where, explore)]
    observations, actions, inputs = (map_leaves(lambda *each: torch.cat(each), *trees) for trees in zip(*parts, strict=True))
    return Recorded(
        episodes=whole,
        observations=observations,
        actions=actions,
        inputs=inputs,
        module=module.cpu(),
        space=spaces[1],
        action_scale=stream.action_scale,
        meanings=stream.meanings,
        has_rewards=has_rewards,
        held_out=held_out,
        left_out=left_out,
        doubts=doubts,
        notes=notes,
    )


def _held_out(
    folder: RunFolder, config: Mapping[str, Any], whole: EpisodeBatch, where: str
) -> tuple[bool | None, NDArray[np.bool_] | None, list[str]]:
    """Whether the episodes are held out of the run's training; which of them (E,), None: all; why estimates may be too good.

    A run remembers the content of its episodes, wherever they are stored. Of those that --top-fraction left out as large a
    share is taken as of the others: all together are as good as the data.
    """
    state = (folder.load() or (None,))[0]
    if state is None or not state.remembered:
        return False, None, ["the run's checkpoint is missing, so nothing tells whether it learned from these recordings"]
    chosen, hashes, remembered = whole, content_hashes(whole), np.array(state.remembered, np.uint64)
    if config.get("top_fraction") is not None and not np.isnan(whole.returns).all():
        names, _, _ = best_episodes([whole], config["top_fraction"], where)
        pairs = zip(whole.ids, whole.agent_ids or (None,) * len(whole), strict=True)
        chosen = whole.select(np.flatnonzero([name in names for name in pairs]))
    smallest = np.sort(content_hashes(chosen))[: len(remembered)]
    if len(chosen) == state.seen["episodes"] and np.array_equal(smallest, remembered):
        if config.get("val_fraction") is None:
            return False, None, []
        return True, HeldOut([chosen], config["val_fraction"], config.get("seed", 0), where).among(whole), []
    if len(remembered) == REMEMBERED:  # of more episodes, those with the smallest hashes
        hashes = hashes[hashes <= remembered[-1]]
    share = float(np.isin(hashes, remembered).mean()) if len(hashes) else 0.0
    if share <= BY_CHANCE:
        return None, None, []
    return False, None, [f"the run learned from {share:.0%} of these episodes, or from ones like them with the same ids"]


def _complete(
    whole: EpisodeBatch, used: Sequence[str], *, has_rewards: bool
) -> tuple[NDArray[np.int64], dict[str, dict[str, int]]]:
    """The episodes whose rewards and probabilities are numbers; how many steps and episodes are not, by column."""
    wrong = {Columns.REWARDS: ~np.isfinite(whole.rewards)} if has_rewards else {}
    for name in used:  # -inf is a probability of 0
        if isinstance(values := whole.extra.get(name), np.ndarray):
            wrong[name] = ~(values.reshape(whole.num_steps, -1) < np.inf).all(1)
    episodes = {name: np.logical_or.reduceat(steps, whole.starts[:-1]) for name, steps in wrong.items() if steps.any()}
    left_out = {name: {"steps": int(wrong[name].sum()), "episodes": int(one.sum())} for name, one in episodes.items()}
    return np.flatnonzero(~np.any([*episodes.values(), np.zeros(len(whole), np.bool_)], 0)), left_out


def _pipeline(loaded: LoadedPolicy, spaces: tuple[Space, Space], run: str) -> Any:
    """The run's learner pipeline, with what it learned, frozen."""
    trained = loaded.trained or PipelineSpec("learner")
    if loaded.trained is not None and trained.document is None:
        what = f"the policy was trained through pieces that Python code made: {', '.join(trained.names) or 'of unknown names'}"
        raise BadConfig(what, where=run, fix="train with a pipeline file: --pipeline FILE")
    made = trained.build(Setting(*spaces))
    known = {name for name, _ in made.named()}
    made.set_state({name: state for name, state in (trained.state or {}).items() if name in known})
    made.freeze()
    return made


def _with_last(episodes: EpisodeBatch) -> EpisodeBatch:
    """The episodes with one more step each, at the last observation, so that a row shows it; its action is the first."""
    starts, obs_starts = episodes.starts, episodes.obs_starts
    steps = np.insert(np.arange(episodes.num_steps), starts[1:], starts[:-1])
    seen = np.insert(np.arange(obs_starts[-1]), obs_starts[1:], obs_starts[1:] - 1)
    return replace(
        episodes,
        starts=starts + np.arange(len(starts)),
        obs=map_leaves(lambda leaf: leaf[seen], episodes.obs),
        actions=map_leaves(lambda leaf: leaf[steps], episodes.actions),
        rewards=episodes.rewards[steps],
        extra={name: map_leaves(lambda leaf: leaf[steps], tree) for name, tree in episodes.extra.items()},
        infos=None if episodes.infos is None else [episodes.infos[row] for row in seen],
    )


def _seen(
    module: RLModule, pipeline: Any, whole: EpisodeBatch, spaces: tuple[Space, Space], where: str, explore: bool
) -> Iterator[tuple[Tree, Tree, Tensor]]:
    """Part by part: observations (n+e, ...), actions (n, ...) and distribution inputs (n+e, size)."""
    announced = pipeline.observation_space or spaces[0], pipeline.action_space or spaces[1]
    for part in grouped([whole], STEPS):
        more = _with_last(part)
        if module.is_stateful():  # a sequence is a whole episode
            module.model_config |= {"max_seq_len": int(more.lengths.max()), "burn_in": 0}
        columns = learner_columns(pipeline, more, announced, where=where, rl_module=module)
        columns[Columns.ACTION_DIST_INPUTS] = _inputs(module, columns, explore)
        if Columns.LOSS_MASK in columns:
            columns = {name: rows_of(tree, columns[Columns.LOSS_MASK]) for name, tree in columns.items()}
        if (count := len(columns[Columns.ACTION_DIST_INPUTS])) != more.num_steps:
            what = f"the run's learner pipeline makes {count:,} rows of {more.num_steps:,} steps"
            raise BadConfig(what, where="learner pipeline", fix="a run whose pieces neither add nor leave out steps")
        acted = torch.from_numpy(np.delete(np.arange(more.num_steps), more.starts[1:] - 1))
        yield columns[Columns.OBS], rows_of(columns[Columns.ACTIONS], acted), columns[Columns.ACTION_DIST_INPUTS]


def _inputs(module: RLModule, columns: Mapping[str, Any], explore: bool) -> Tensor:
    """Of each row, or of each step (B, T, size) of sequences."""
    observations, device = columns[Columns.OBS], next(module.parameters()).device
    count, found = len(leaves(observations)[0]), []
    forward = module.forward_exploration if explore else module.forward_inference
    before = {Columns.STATE_IN: initial_state(module)} if module.is_stateful() else {}
    size = max(1, ROWS // (leaves(observations)[0].shape[1] if before else 1))
    with evaluating(module), torch.inference_mode():
        for first in range(0, count, size):
            rows = map_leaves(lambda leaf, f=first: leaf[f : f + size].to(device), observations)
            many = len(leaves(rows)[0])
            state = map_leaves(lambda leaf, n=many: torch.as_tensor(leaf, device=device).expand(n, *leaf.shape), before)
            found.append(forward({Columns.OBS: rows, **state})[Columns.ACTION_DIST_INPUTS].cpu())
    return torch.cat(found)
