"""Recorded episodes as the policy of a run sees them: after its connector pieces, whole episodes in order.

The episodes go through the run's learner pipeline, with what its pieces learned, frozen. Each gets one more step at its end,
whose row shows the policy the last observation. A policy with memory sees each episode as one sequence, from its initial state
on.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_cli.applying import learner_batches
from offline_cli.choices import Behaviour
from offline_cli.columns import Columns
from offline_cli.connectors.learner.added_columns import AddOneTsToEpisodesAndTruncate
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.converting.fitting import ExtraOutputs
from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, NoData, UsageError
from offline_cli.formats.source import UNKNOWN_SCALE
from offline_cli.formats.tables.mapping import given_mapping
from offline_cli.formats.tables.source import TableOptions
from offline_cli.meanings import Meanings
from offline_cli.modules.rl_module import RLModule, initial_state
from offline_cli.policies.policy import stand_in
from offline_cli.policies.run_policy import LoadedPolicy, environment_spaces
from offline_cli.progress import OnProgress
from offline_cli.spaces import Space
from offline_cli.storage.locations import Sources
from offline_cli.training.chosen_episodes import held_out_of_run, learned_before
from offline_cli.training.run_folder import RunFolder, TrainState
from offline_cli.training.steps import Batches, Steps
from offline_cli.trees import Tree, map_leaves, rows_of

__all__ = ["Recorded", "recorded_for"]

STEPS: Final = 1 << 16  # of the episodes that go through the pipeline together
ROWS: Final = 1 << 14  # that go through the network together
USED: Final = (Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS)
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
    doubts: Sequence[str]  # why no estimate is reliable
    facts: Mapping[str, Any]  # fields of OfflineResult: `held_out`, `left_out` (these episodes are not here), `notes`

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
        stream = read_episodes(sources, action_scale=None if scale == UNKNOWN_SCALE else scale, **reading)
    except UsageError:  # the sources declare another scale, which is converted
        stream = read_episodes(sources, **reading)
    with stream:
        where, spaces = ", ".join(stream.locations), learner_batches.learner_spaces(stream, own)
        batches = filter(len, map(learner_batches.with_steps, stream))
        which: dict[str, Any] = {"agent": config.get("agent"), "module": module_id or loaded.description.get("module")}
        found = [*learner_batches.of_one_module(batches, **which, where=where, seen=Counter())]
    if not found:
        raise NoData("no episode has any steps", where=where, fix="name recordings with steps")
    whole, has_rewards = EpisodeBatch.concat(found), stream.without_rewards is None
    state, _ = folder.load() or (TrainState(), None)
    held_out, mine, doubts = held_out_of_run(whole, config, state.remembered, state.seen.get("episodes", 0), where)
    if held_out is not False and (before := learned_before(whole, state.ancestors)):
        held_out, mine, doubts = False, None, before
    whole, notes = whole if mine is None else whole.select(mine), [*stream.incomplete, *doubts]
    if held_out is False and not doubts:
        notes.append("the run learned from these episodes: its figures are better than on others (train --val-fraction)")
    complete, left_out = _complete(whole, (*used, Columns.REWARDS) if has_rewards else used)
    if not has_rewards:
        notes.append("there are no rewards, so values cannot be estimated")
    if left_out:
        named = ", ".join(f"{name} at {one['steps']:,} steps of {one['episodes']:,} episodes" for name, one in left_out.items())
        doubts.append(f"NaN or infinite: {named}")
        if complete.any():
            notes.append(f"{doubts[-1]}; these episodes are left out, which shifts estimates if that hangs on outcomes")
            whole = whole.select(complete)
        else:
            notes.append(f"{doubts[-1]}, which is all, so values cannot be estimated (--behaviour fit needs no action_logp)")
            has_rewards = False
    for name, space in zip(("observations", "actions"), spaces, strict=True):
        learner_batches.check_values(whole, space, name, where, stream.meanings)
    whole = learner_batches.in_learner_units(whole, spaces[1], stream.action_scale)
    loaded.module.to(device).eval()
    parts = [*_seen(loaded, whole, spaces, where, folder.url, explore)]
    observations, actions, inputs = (map_leaves(lambda *each: torch.cat(each), *trees) for trees in zip(*parts, strict=True))
    declared = spaces[1], stream.action_scale, stream.meanings
    facts = {"held_out": held_out, "left_out": left_out, "notes": notes}
    return Recorded(whole, observations, actions, inputs, loaded.module.cpu(), *declared, has_rewards, doubts, facts)


def _complete(whole: EpisodeBatch, names: Sequence[str]) -> tuple[NDArray[np.bool_], dict[str, dict[str, int]]]:
    """(E,) the episodes with numbers in these columns; how many steps and episodes have none, by column with any."""
    complete, left_out = np.ones(len(whole), np.bool_), dict[str, dict[str, int]]()
    for name in names:
        values = whole.rewards if name == Columns.REWARDS else whole.extra.get(name)
        if isinstance(values, np.ndarray):
            wrong = ~np.isfinite(values) & ~(np.isneginf(values) & (name in USED))  # -inf is a probability of 0
            steps = np.add.reduceat(wrong.reshape(whole.num_steps, -1).any(1), whole.starts[:-1], dtype=np.int64)
            complete &= steps == 0
            left_out |= {name: {"steps": int(steps.sum()), "episodes": int((steps > 0).sum())}} if steps.any() else {}
    return complete, left_out


def _seen(
    loaded: LoadedPolicy, whole: EpisodeBatch, spaces: tuple[Space, Space], where: str, run: str, explore: bool
) -> Iterator[tuple[Tree, Tree, Tensor]]:
    """Part by part: observations (n+e, ...), actions (n, ...) and distribution inputs (n+e, size)."""
    module, trained = loaded.module, loaded.trained or PipelineSpec("learner")
    if loaded.trained is not None and trained.document is None:
        what = f"the policy was trained through pieces that Python code made: {', '.join(trained.names) or 'of unknown names'}"
        raise BadConfig(what, where=run, fix="train with a pipeline file: --pipeline FILE")
    pipeline = trained.build(Setting(*spaces))
    known = {name for name, _ in pipeline.named()}
    pipeline.set_state({name: state for name, state in trained.state.items() if name in known})
    pipeline.freeze()
    announced = pipeline.observation_space or spaces[0], pipeline.action_space or spaces[1]
    forward, device = module.forward_exploration if explore else module.forward_inference, next(module.parameters()).device
    before = {Columns.STATE_IN: initial_state(module)} if module.is_stateful() else None
    for part in learner_batches.grouped([whole], STEPS):
        _, more = AddOneTsToEpisodesAndTruncate().on_episode_batch(batch={}, episodes=part)
        if module.is_stateful():  # a sequence is a whole episode
            module.model_config |= {"max_seq_len": int(more.lengths.max())}
        columns = learner_batches.learner_columns(pipeline, more, announced, where=where, rl_module=module)
        batches = Batches(Steps(columns), batch_size=ROWS, seed=0, device=device, before=before)
        with torch.inference_mode():
            inputs = [forward(batch)[Columns.ACTION_DIST_INPUTS].cpu() for batch, _ in batches.in_order()]
        columns[Columns.ACTION_DIST_INPUTS] = torch.cat(inputs)
        if Columns.LOSS_MASK in columns:
            columns = {name: rows_of(tree, columns[Columns.LOSS_MASK]) for name, tree in columns.items()}
        if (count := len(columns[Columns.ACTION_DIST_INPUTS])) != more.num_steps:
            what = f"the run's learner pipeline makes {count:,} rows of {more.num_steps:,} steps"
            raise BadConfig(what, where="learner pipeline", fix="a run whose pieces neither add nor leave out steps")
        acted = torch.from_numpy(np.delete(np.arange(more.num_steps), more.starts[1:] - 1))
        yield columns[Columns.OBS], rows_of(columns[Columns.ACTIONS], acted), columns[Columns.ACTION_DIST_INPUTS]
