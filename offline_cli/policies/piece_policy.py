"""PolicyForPieces: a module between its connector pipelines, which see the episodes that play, as in RLlib's env runner.

An episode grows by a step at each call. Pieces may write into it, so it is no recording: the caller keeps the raw observations.
Actions in it are in the units of networks, as learners get them, so pieces that look at earlier actions see the same here and
in a learner pipeline. Pieces play with the state they have: none of them learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces

from offline_cli.connectors.module_to_env.default_pipeline import NormalizeAndClipActions
from offline_cli.connectors.pipeline_player import PipelinePlayer, RecordedActions
from offline_cli.connectors.pipeline_spec import PlayPipelines
from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import stack, unstack
from offline_cli.errors import BadEpisode, BadPiece
from offline_cli.modules.action_units import in_network_units, network_space
from offline_cli.modules.distributions import ActionHead
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import ActInput, ActOutput, Policy, State, seeded
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, map_leaves

__all__ = ["PolicyForPieces", "is_of_floats", "piece_policy"]

SPARE: Final = 64  # steps that an episode grows beyond what pieces look back on, before it is cut
EPISODE, LAST = "episode", "last"  # of its state: the episode that plays; its last action and extra model outputs


class PolicyForPieces(Policy):
    """See Policy."""

    def __init__(
        self,
        player: PipelinePlayer,
        environment: Environment,
        *,
        fingerprint: str,
        action_scale: str,
        explore: bool,
        head: ActionHead | None = None,
        episode_kind: type[Any] = SingleAgentEpisode,
        lookback: int | None = None,
        looks_back: bool = True,
        reads_rewards: bool = False,
        needs_finite: bool = False,
        device: Any = None,
    ) -> None:
        """`player`: a module in evaluation mode and its pipelines. `head`: what draws; None: whatever draws does so from the
        generators of its library. `episode_kind`: what pieces get, our class or RLlib's. `lookback`: see PlaySpec;
        `looks_back`, `reads_rewards`, `needs_finite`: see Policy."""
        self.fingerprint, self.action_scale = fingerprint, action_scale
        self.chance_size = (1 if head is None else head.chance_size) if explore else 0
        self.player = player
        self.looks_back, self.reads_rewards, self.needs_finite = looks_back, reads_rewards, needs_finite
        self._explore, self._draws_itself = explore, head is None
        self._kind, self._spaces = episode_kind, (environment.observation_space, environment.action_space)
        self._is_ours = issubclass(episode_kind, SingleAgentEpisode)
        self._own_space = network_space(self._spaces[1]) if self._is_ours else self._spaces[1]
        self._recorded, self._lookback, self._device = RecordedActions(self._spaces[1]), lookback, device

    def act(self, given: ActInput, state: State) -> ActOutput:
        """See Policy. Raises BadPiece for pipelines that give no actions, or others than the environment's."""
        episodes = self._grown(given, state)
        if self._draws_itself or given.chance is None:
            with seeded(given.chance):
                acts = self.player.act(episodes.tolist(), explore=self._explore)
        else:
            chance = torch.as_tensor(given.chance, dtype=torch.float32, device=self._device)
            acts = self.player.act(episodes.tolist(), chance=chance, explore=self._explore)
        extras = {name: _as_rows(items, name) for name, items in acts.extra.items()}
        actions, for_env = self._recorded(_as_rows(acts.actions), _as_rows(acts.actions_for_env))
        kept = in_network_units(actions, self._spaces[1], action_scale="normalized") if self._is_ours else actions
        columns = {name: unstack(tree) for name, tree in extras.items()}
        last = np.empty(len(episodes), object)
        for row, action in enumerate(unstack(kept)):
            last[row] = action, {name: rows[row] for name, rows in columns.items()}
        return ActOutput(actions, for_env, extras, {EPISODE: episodes, LAST: last})

    def _grown(self, given: ActInput, state: State) -> Any:
        """The episodes (B,), with what was seen."""
        observations = unstack(map_leaves(np.array, given.obs))  # copies: pieces may write into them, and their owner does
        rewards, numbers, grown = given.rewards.tolist(), given.episodes.tolist(), np.empty(len(given.t), object)
        for row, t in enumerate(given.t.tolist()):
            info = dict(given.infos[row]) if given.infos is not None else {}
            if t == 0:
                spaces_ = {"observation_space": self._spaces[0], "action_space": self._own_space}
                episode = self._kind(id_=f"episode-{numbers[row]}", **spaces_)
                episode.add_env_reset(observations[row], info)
            else:
                episode, (action, outputs) = state[EPISODE][row], state[LAST][row]
                episode.add_env_step(observations[row], action, rewards[row], info, extra_model_outputs=outputs)
                if self._lookback is not None and len(episode) >= self._lookback + SPARE:
                    episode = episode.cut(len_lookback_buffer=self._lookback)
            grown[row] = episode
        return grown


def piece_policy(
    module: RLModule, play: PlaySpec, environment: Environment, *, explore: bool, device: Any, fingerprint: str = ""
) -> PolicyForPieces:
    """The policy of `module` between pieces that fit (`PlaySpec.check`). Raises what `PlaySpec.build_in` raises."""
    pipelines = play.build_in(environment, device=device)
    play.check_filters(pipelines)
    module = module.to(device).eval()
    _stretch_as(module, pipelines, environment.action_space)
    floats = any(is_of_floats(leaf) for leaf in leaf_spaces(environment.action_space).values())
    pieces = pipelines.pieces()
    stretched = any(isinstance(piece, NormalizeAndClipActions) and piece.normalize_actions for piece in pieces)
    are_ours = all(type(piece).__module__.startswith("offline_cli.") for piece in pieces)
    back = max((piece.looks_back for piece in pieces), default=0)
    head = getattr(module, "action_head", None)
    return PolicyForPieces(
        PipelinePlayer(module, pipelines.env_to_module, pipelines.module_to_env, explore=explore),
        environment,
        fingerprint=fingerprint,
        action_scale="normalized" if floats and stretched else "env",
        explore=explore,
        head=head if isinstance(head, ActionHead) else None,
        lookback=max(back, 1) if are_ours and play.lookback is None else play.lookback,
        looks_back=not are_ours or back > 0 or module.is_stateful(),
        reads_rewards=any(getattr(piece, "n_prev_rewards", 0) for piece in pipelines.env_to_module.pieces()),
        needs_finite=are_ours,  # pieces of the user's own may fill in NaN
        device=device,
    )


def is_of_floats(space: Space) -> bool:
    """Whether its actions have a scale: not so where they are whole numbers."""
    return isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f"


def _stretch_as(module: RLModule, pipelines: PlayPipelines, actions: Space) -> None:
    """Have actions stretched to the bounds that the module learned them by, which may be others than the environment's."""
    head = getattr(module, "action_head", None)
    if isinstance(head, ActionHead) and not misfits(module.action_space, actions, inferred=False, what="actions"):
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
