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
from offline_cli.applying.pipeline_run import freeze
from offline_cli.columns import Columns
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.converting.fitting import ExtraOutputs
from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, NoData, UsageError
from offline_cli.meanings import Meanings
from offline_cli.modules.rl_module import RLModule, evaluating, initial_state
from offline_cli.policies.policy import stand_in
from offline_cli.policies.run_policy import LoadedPolicy, environment_spaces
from offline_cli.progress import OnProgress
from offline_cli.spaces import Space
from offline_cli.storage.locations import Sources
from offline_cli.training.chosen_episodes import HeldOut, best_episodes
from offline_cli.trees import Tree, leaves, map_leaves, rows_of

__all__ = ["Recorded", "recorded_for"]

STEPS: Final = 1 << 16  # of the episodes that go through the pipeline together
ROWS: Final = 1 << 14  # that go through the network together
USED: Final = (Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS)


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
    where: str
    has_rewards: bool
    held_out: bool | None  # whether the run held them out; None: it learned from other data
    overlap: bool  # whether the run learned from some of these sources, and from others
    notes: Sequence[str]

    @property
    def acted(self) -> Tensor:
        """(N,) which of the N+E observations were acted on."""
        last = self.episodes.obs_starts[1:] - 1
        return torch.from_numpy(np.delete(np.arange(self.episodes.num_steps + len(self.episodes)), last))


def recorded_for(
    loaded: LoadedPolicy,
    config: Mapping[str, Any],
    learned_from: str | None,
    sources: Sources,
    *,
    run: str,
    explore: bool,
    device: torch.device,
    storage_options: Mapping[str, Any] | None,
    on_progress: OnProgress,
) -> Recorded:
    """Read `sources` for the policy of a run. `config`: the run's; `learned_from`: the places of its data, as text.

    Of that data the episodes that the run held out are taken, if it held some out. Raises what `read_episodes` raises, NoData;
    SpaceMismatch where the data is not of the run's environment; BadConfig for a run whose pieces Python code made, and for
    pieces that give other rows than a step each; BadPiece; BadData.
    """
    own = stand_in(f"run {run}", environment_spaces(loaded, run))
    scale = loaded.description["action_scale"]
    reading: dict[str, Any] = {
        "env_spaces": (own.observation_space, own.action_space),
        "extras": (lambda _: ExtraOutputs(USED)) if loaded.trained is None else None,
        "storage_options": storage_options,
        "on_progress": on_progress,
    }
    try:
        stream = read_episodes(sources, action_scale=None if scale == "unknown" else scale, **reading)
    except UsageError:  # the sources declare another scale, which is converted
        stream = read_episodes(sources, **reading)
    with stream:
        where, notes, held_out = ", ".join(stream.locations), [*stream.incomplete], None
        spaces = learner_spaces(stream, own)
        seen: Counter[str] = Counter()
        batches = filter(len, map(with_steps, stream))
        module_id = loaded.description.get("module")
        found = [*of_one_module(batches, config.get("agent"), module_id, where=where, seen=seen)]
        if not found:
            raise NoData("no episode has any steps", where=where, fix="name recordings with steps")
        whole = EpisodeBatch.concat(found)
        has_rewards = stream.without_rewards is None
    same, overlap = _shared(learned_from, stream.locations)
    if overlap:
        held_out = False
        notes.append("the run learned from some of these recordings: name exactly the sources of its training, in their order")
    elif same:
        held_out = config.get("val_fraction") is not None
        if held_out:
            whole = whole.select(np.flatnonzero(_held_out(config, whole, where)))
        else:
            notes.append("the run learned from these episodes: its figures are better than on others (train --val-fraction)")
    whole = replace(
        whole, extra={name: tree for name, tree in whole.extra.items() if name in USED or loaded.trained is not None}
    )
    for name, space in zip(("observations", "actions"), spaces, strict=True):
        check_values(whole, space, name, where, stream.meanings)
    whole = in_learner_units(whole, spaces[1], stream.action_scale)
    pipeline = _pipeline(loaded, spaces, run)
    module = loaded.module.to(device).eval()
    announced = pipeline.observation_space or spaces[0], pipeline.action_space or spaces[1]
    parts = [*_seen(module, pipeline, whole, announced, where, explore)]
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
        where=where,
        has_rewards=has_rewards,
        held_out=held_out,
        overlap=overlap,
        notes=notes,
    )


def _shared(learned_from: str | None, locations: Sequence[str]) -> tuple[bool, bool]:
    """Whether the run learned from exactly these sources; else whether from some of them."""
    if learned_from is None:
        return False, False
    if learned_from == ", ".join(locations):
        return True, False
    learned, here = [*map(_absolute, learned_from.split(", "))], [*map(_absolute, locations)]
    if learned == here:
        return True, False
    pairs = ((f"{one}/", f"{other}/") for one in learned for other in here)
    return False, any(one.startswith(other) or other.startswith(one) for one, other in pairs)


def _absolute(location: str) -> str:
    path = location.removeprefix("file://")
    return path.rstrip("/") if "://" in path else os.path.realpath(path)


def _held_out(config: Mapping[str, Any], whole: EpisodeBatch, where: str) -> NDArray[np.bool_]:
    """(E,) which episodes the run did not learn from. Of those that --top-fraction left out as large a share is taken as of the
    others: all together are as good as the data.
    """
    chosen = whole
    if config.get("top_fraction") is not None:
        names, _, _ = best_episodes([whole], config["top_fraction"], where)
        pairs = zip(whole.ids, whole.agent_ids or (None,) * len(whole), strict=True)
        chosen = whole.select(np.flatnonzero([name in names for name in pairs]))
    return HeldOut([chosen], config["val_fraction"], config.get("seed", 0), where).among(whole)


def _pipeline(loaded: LoadedPolicy, spaces: tuple[Space, Space], run: str) -> Any:
    """The run's learner pipeline, with what it learned, frozen."""
    trained = loaded.trained
    if trained is not None and trained.document is None:
        what = f"the policy was trained through pieces that Python code made: {', '.join(trained.names) or 'of unknown names'}"
        raise BadConfig(what, where=run, fix="train with a pipeline file: --pipeline FILE")
    made = (trained or PipelineSpec("learner")).build(Setting(*spaces))
    known = {name for name, _ in made.named()}
    made.set_state({name: state for name, state in (trained.state if trained else {}).items() if name in known})
    for piece in made.pieces():
        freeze(piece)
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
    module: RLModule, pipeline: Any, whole: EpisodeBatch, announced: tuple[Space, Space], where: str, explore: bool
) -> Iterator[tuple[Tree, Tree, Tensor]]:
    """Part by part: observations (n+e, ...), actions (n, ...) and distribution inputs (n+e, size)."""
    for part in grouped([whole], STEPS):
        more = _with_last(part)
        if module.is_stateful():  # a sequence is a whole episode
            module.model_config |= {"max_seq_len": int(more.lengths.max())}
        columns = learner_columns(pipeline, more, announced, where=where, rl_module=module)
        inputs = _inputs(module, columns, explore)
        if Columns.LOSS_MASK in columns:
            mask = columns[Columns.LOSS_MASK]
            columns, inputs = {name: rows_of(tree, mask) for name, tree in columns.items()}, inputs[mask]
        if len(inputs) != more.num_steps:
            what = f"the run's learner pipeline makes {len(inputs):,} rows of {more.num_steps:,} steps"
            raise BadConfig(what, where="learner pipeline", fix="a run whose pieces neither add nor leave out steps")
        acted = torch.from_numpy(np.delete(np.arange(more.num_steps), more.starts[1:] - 1))
        yield columns[Columns.OBS], rows_of(columns[Columns.ACTIONS], acted), inputs


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
            n = len(leaves(rows)[0])
            state = map_leaves(lambda leaf, n=n: torch.as_tensor(leaf, device=device).expand(n, *leaf.shape), before)
            found.append(forward({Columns.OBS: rows, **state})[Columns.ACTION_DIST_INPUTS].cpu())
    return torch.cat(found)
