"""PolicyForPieces: a module between its connector pipelines, which see the episodes that play, as in RLlib's env runner.

An episode grows by a step at each call. Pieces may write into it, so it is no recording: the caller keeps the raw observations.
Actions in it are in the units of networks, as learners get them, so pieces that look at earlier actions see the same here and
in a learner pipeline. Pieces play with the state they have: none of them learns.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces

from offline_cli.connectors.module_to_env.default_pipeline import NormalizeAndClipActions
from offline_cli.connectors.pipeline_player import PipelinePlayer, RecordedActions, frames_looked_at, steps_looked_at
from offline_cli.connectors.pipeline_spec import PlayPipelines
from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import stack, unstack
from offline_cli.errors import BadEpisode, BadPiece
from offline_cli.modules.action_units import in_network_units, network_space
from offline_cli.modules.distributions import ActionHead
from offline_cli.modules.drawing import chance_size
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import FAILED_ROW, RAISED, Acted, Seen
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, map_leaves

__all__ = ["PolicyForPieces", "is_of_floats", "piece_policy"]

SPARE: Final = 64  # steps that an episode grows beyond what pieces look back on, before it is cut


@dataclass(slots=True, eq=False)
class _Playing:
    """The episodes that play, by slot, and what was done last in each."""

    episodes: dict[int, Any] = field(default_factory=dict)
    actions: dict[int, Tree] = field(default_factory=dict)
    outputs: dict[int, Mapping[str, Tree]] = field(default_factory=dict)


class PolicyForPieces:
    """See Policy."""

    def __init__(
        self,
        player: PipelinePlayer,
        action_space: Space,
        *,
        fingerprint: str,
        action_scale: str,
        observation_space: Space | None = None,
        episode_kind: type[Any] = SingleAgentEpisode,
        draws: int = 0,
        lookback: int | None = None,
        looks_back: bool = True,
        device: Any = None,
    ) -> None:
        """`player`: a module in evaluation mode and its pipelines. `episode_kind`: what pieces get, our class or RLlib's.
        `draws`: uniform numbers that an explored action takes; 0: the pipelines draw with torch's generator. `lookback`: see
        PlaySpec; `looks_back`: whether actions may depend on earlier observations."""
        self.fingerprint, self.action_scale, self.chance_size = fingerprint, action_scale, draws
        self.player, self.looks_back = player, looks_back
        self._kind, self._spaces = episode_kind, (observation_space, action_space)
        self._is_ours = issubclass(episode_kind, SingleAgentEpisode)
        self._own_space = network_space(action_space) if self._is_ours else action_space
        self._recorded, self._lookback, self._device = RecordedActions(action_space), lookback, device

    def act(self, seen: Seen, state: Any, explore: bool) -> Acted:
        """See Policy. Raises BadPiece for pipelines that give no actions, or others than the environment's; what pieces raise
        passes."""
        playing = _Playing() if state is None else state
        episodes = self._grown(seen, playing)
        chance = None
        if explore and seen.chance is not None:
            chance = torch.as_tensor(seen.chance, dtype=torch.float32, device=self._device)
        try:
            acts = self.player.act(episodes, chance=chance, explore=explore)
        except RAISED as err:
            setattr(err, FAILED_ROW, self._first_bad(episodes, explore))
            raise
        extras = {name: _as_rows(items, name) for name, items in acts.extra.items()}
        actions, for_env = self._recorded(_as_rows(acts.actions), _as_rows(acts.actions_for_env))
        kept = in_network_units(actions, self._spaces[1], action_scale="normalized") if self._is_ours else actions
        slots = seen.slots.tolist()
        playing.actions = dict(zip(slots, unstack(kept), strict=True))
        columns = {name: unstack(tree) for name, tree in extras.items()}
        playing.outputs = {slot: {name: rows[row] for name, rows in columns.items()} for row, slot in enumerate(slots)}
        return Acted(actions, for_env, extras, playing)

    def _first_bad(self, episodes: list[Any], explore: bool) -> int | None:
        """The first episode that a piece raises for alone; None: for none, since they are asked for copies."""
        for row, episode in enumerate(episodes):
            try:
                self.player.act([copy.deepcopy(episode)], explore=explore)
            except RAISED:  # the same failure again, which is what is looked for
                return row
        return None

    def _grown(self, seen: Seen, playing: _Playing) -> list[Any]:
        """The episodes, with what was seen."""
        observations = unstack(map_leaves(np.array, seen.obs))  # copies: pieces may write into them, and their owner does
        rewards, begins = seen.rewards.tolist(), seen.begins.tolist()
        grown = []
        for row, slot in enumerate(seen.slots.tolist()):
            info = dict(seen.infos[row]) if seen.infos is not None else {}
            if begins[row]:
                number = slot if seen.episodes is None else int(seen.episodes[row])
                episode = self._kind(id_=f"episode-{number}", observation_space=self._spaces[0], action_space=self._own_space)
                episode.add_env_reset(observations[row], info)
            else:
                episode = playing.episodes[slot]
                action, outputs = playing.actions[slot], playing.outputs[slot]
                episode.add_env_step(observations[row], action, rewards[row], info, extra_model_outputs=outputs)
                if self._lookback is not None and len(episode) >= self._lookback + SPARE:
                    episode = episode.cut(len_lookback_buffer=self._lookback)
            playing.episodes[slot] = episode
            grown.append(episode)
        return grown


def piece_policy(
    module: RLModule, play: PlaySpec, environment: Environment, *, explore: bool, device: Any, fingerprint: str = ""
) -> PolicyForPieces:
    """The policy of `module` between pieces that fit (`PlaySpec.check`). Raises what `PlaySpec.build_in` raises."""
    pipelines = play.build_in(environment, device=device)
    play.check_filters(pipelines)
    module = module.to(device).eval()
    actions = environment.action_space
    _stretch_as(module, pipelines, actions)
    floats = any(is_of_floats(leaf) for leaf in leaf_spaces(actions).values())
    pieces = [*pipelines.module_to_env.pieces()]
    stretched = any(isinstance(piece, NormalizeAndClipActions) and piece.normalize_actions for piece in pieces)
    are_ours = all(type(piece).__module__.startswith("offline_cli.") for piece in (*pipelines.env_to_module.pieces(), *pieces))
    back = max(frames_looked_at(pipelines) - 1, steps_looked_at(pipelines))  # what ours say they look back on
    lookback = max(back, 1) if are_ours and play.lookback is None else play.lookback
    return PolicyForPieces(
        PipelinePlayer(module, pipelines.env_to_module, pipelines.module_to_env, explore=explore),
        actions,
        fingerprint=fingerprint,
        action_scale="normalized" if floats and stretched else "env",
        observation_space=environment.observation_space,
        draws=chance_size(module.action_head) if explore and isinstance(module.action_head, ActionHead) else 0,
        lookback=lookback,
        looks_back=not are_ours or back > 0 or module.is_stateful(),
        device=device,
    )


def is_of_floats(space: Space) -> bool:
    """Whether its actions have a scale: not so where they are whole numbers."""
    return isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f"


def _stretch_as(rl_module: RLModule, pipelines: PlayPipelines, actions: Space) -> None:
    """Have actions stretched to the bounds that the module learned them by, which may be others than the environment's."""
    head = getattr(rl_module, "action_head", None)
    if isinstance(head, ActionHead) and not misfits(rl_module.action_space, actions, inferred=False, what="actions"):
        for piece in pipelines.module_to_env.pieces():
            if isinstance(piece, NormalizeAndClipActions):
                piece.stretched_by = head.stretched_by(actions)


def _as_rows(items: Sequence[Any], name: str = "actions") -> Tree:
    if not isinstance(items, list):
        return items
    try:
        return stack(items, None)
    except BadEpisode as err:
        what = f"column {name!r} has items that differ from episode to episode: {err.what.replace('step', 'item', 1)}"
        fix = "give each episode an item of one structure and shape"
        raise BadPiece(what, where="module-to-env pipeline", fix=fix) from err
