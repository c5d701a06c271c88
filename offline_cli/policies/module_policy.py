"""An RLModule as a policy: alone (`ModulePolicy`), or between its connector pipelines (`PolicyForPieces`), as in RLlib's env
runner. The latter keeps the episodes that play, which takes three times as long, and plays modules that remember, too.

Extra model outputs follow RLlib: `action_dist_inputs`, and `action_logp`, which is 0 for greedy actions, because they are
certain. Box actions are recorded as RLlib's are, with the scale `normalized`: the module's own outputs, which may lie beyond
[-1, 1], before they are stretched to the bounds and clipped. Integer boxes are recorded as the environment takes them; their
`action_logp` is of the action before it was rounded.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces

from offline_cli.columns import Columns
from offline_cli.connectors.module_to_env.default_pipeline import NormalizeAndClipActions
from offline_cli.connectors.pipeline_player import PipelinePlayer, RecordedActions
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import stack, unstack
from offline_cli.errors import BadEpisode, BadPiece
from offline_cli.modules.distributions import ActionHead, ForEnvironment, in_network_units, network_space
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import Acted, Policy, PolicyOptions, State, fitting, seeded
from offline_cli.spaces import only_discrete
from offline_cli.trees import Tree, map_leaves

__all__ = ["ModulePolicy", "PolicyForPieces", "module_policy", "open_module"]

SPARE: Final = 64  # steps that an episode grows beyond what pieces look back on, before it is cut


def open_module(
    module: RLModule,
    name: str,
    environment: Environment | None,
    options: PolicyOptions,
    *,
    fingerprint: str,
    trained: PipelineSpec | None = None,
) -> Policy:
    """The policy of a module. It plays between pieces where the user gave some, it was trained through some, or remembers.

    Raises SpaceMismatch, BadConfig.
    """
    play: PlaySpec | None = replace(options.pieces, trained=trained)
    if options.pieces.is_default and trained is None and not module.is_stateful():
        environment = fitting((module.observation_space, module.action_space), name, environment)
        play = play if module.in_rllibs_manner else None
    environment = environment or fitting((None, None), name, None)
    return module_policy(module, play, environment, device=torch.device(options.device), fingerprint=fingerprint, name=name)


def module_policy(
    module: RLModule, pieces: PlaySpec | None, environment: Environment, *, device: Any, fingerprint: str = "", name: str = ""
) -> Policy:
    """The policy of a module in an environment that it fits, between `pieces`; None: between none. `name`: for messages.

    Raises what `PlaySpec.build_in` raises.
    """
    if pieces is None:
        return ModulePolicy(module, environment, device=device, fingerprint=fingerprint)
    place, own = f"--policy {name} in {environment.name}", (module.observation_space, module.action_space)
    pipelines = pieces.build_in(environment, *own, where=place, device=device)
    every, head = pipelines.pieces(), getattr(module, "action_head", None)
    head = head if isinstance(head, ActionHead) else None
    stretching = [piece for piece in every if isinstance(piece, NormalizeAndClipActions)]
    if head is not None and not misfits(own[1], environment.action_space, inferred=False, what="actions"):
        for piece in stretching:  # by the bounds that the module learned actions by, which may be others
            piece.stretched_by = head.stretched_by(environment.action_space)
    are_ours = all(type(piece).__module__.startswith("offline_cli.") for piece in every)
    back = max((piece.looks_back for piece in every), default=0)
    policy = PolicyForPieces(
        PipelinePlayer(module.to(device).eval(), pipelines.env_to_module, pipelines.module_to_env),
        environment,
        fingerprint=fingerprint,
        is_normalized=any(piece.normalize_actions for piece in stretching),
        head=head,
        lookback=max(back, 1) if are_ours and pieces.lookback is None else pieces.lookback,
        device=device,
    )
    policy.looks_back = not are_ours or back > 0 or module.is_stateful()
    policy.reads_rewards = any(getattr(piece, "n_prev_rewards", 0) for piece in every)
    policy.needs_finite = are_ours  # pieces of the user's own may fill in NaN
    return policy


class ModulePolicy(Policy):
    """A module without memory or pieces."""

    needs_finite = True

    def __init__(self, module: RLModule, environment: Environment, *, device: Any, fingerprint: str) -> None:
        """`environment`: one that the module fits."""
        super().__init__(environment, fingerprint)
        self._module, self._device, self._head = module.to(device).eval(), device, module.action_head
        self._for_env = ForEnvironment(self.spaces[1], self._head.stretched_by(self.spaces[1]))
        self._recorded, self._is_choice = RecordedActions(self.spaces[1]), isinstance(self.spaces[1], spaces.Discrete)
        self.action_scale = "env" if only_discrete(self.spaces[1]) else "normalized"

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy."""
        batch = {Columns.OBS: map_leaves(lambda leaf: torch.as_tensor(leaf, device=self._device), observations)}
        with torch.inference_mode():
            outputs = self._module.forward_exploration(batch) if explore else self._module.forward_inference(batch)
            inputs = outputs[Columns.ACTION_DIST_INPUTS]  # (B, size)
            if explore:
                chance = torch.as_tensor(state.chance(self._head.chance_size), dtype=inputs.dtype, device=inputs.device)
                acted = self._head.drawn(inputs, chance)
                logp = self._head.logp(inputs, acted).cpu().numpy()
            else:
                acted, logp = self._head.greedy(inputs), np.zeros(len(inputs), np.float32)
        extras = {Columns.ACTION_DIST_INPUTS: inputs.cpu().numpy(), Columns.ACTION_LOGP: logp}
        if self._is_choice:  # the same as below, and quicker
            actions = acted.cpu().numpy().astype(self.spaces[1].dtype, copy=False)
            return Acted(actions, actions, extras)
        arrays = map_leaves(lambda leaf: leaf.cpu().numpy(), acted)
        return Acted(*self._recorded(arrays, self._for_env(arrays)), extras)


class PolicyForPieces(Policy):
    """A module between its pipelines, which see the episodes that play, ours or RLlib's.

    An episode grows by a step at each call. Pieces may write into it, so it is no recording: the caller keeps the raw
    observations. Actions in it are in the units of networks, as learners get them, so pieces that look at earlier actions see
    the same here and in a learner pipeline. Pieces play with the state they have: none of them learns.
    """

    looks_back = True

    def __init__(
        self,
        player: PipelinePlayer,
        environment: Environment,
        *,
        fingerprint: str,
        is_normalized: bool,
        head: ActionHead | None = None,
        episode_kind: type[Any] = SingleAgentEpisode,
        lookback: int | None = None,
        device: Any = None,
    ) -> None:
        """`player`: a module in evaluation mode and its pipelines. `is_normalized`: whether these stretch actions to the
        bounds. `head`: what draws; None: whatever draws does so from the generators of its library. `episode_kind`: what pieces
        get, our class or RLlib's. `lookback`: see PlaySpec."""
        super().__init__(environment, fingerprint)
        self.player = player
        self.action_scale = "normalized" if is_normalized and not only_discrete(self.spaces[1]) else "env"
        self._head, self._kind, self._lookback, self._device = head, episode_kind, lookback, device
        self._is_ours = issubclass(episode_kind, SingleAgentEpisode)
        self._own_space = network_space(self.spaces[1]) if self._is_ours else self.spaces[1]
        self._recorded = RecordedActions(self.spaces[1])

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy. Raises BadPiece for pipelines that give no actions, or others than the environment's."""
        episodes = self._grown(observations, state)
        chance = None
        if explore and self._head is not None:
            chance = torch.as_tensor(state.chance(self._head.chance_size), dtype=torch.float32, device=self._device)
        with seeded(state) if explore and self._head is None else nullcontext():
            acts = self.player.act(episodes, chance=chance, explore=explore)
        extras = {name: _as_rows(items, name) for name, items in acts.extra.items()}
        actions, for_env = self._recorded(_as_rows(acts.actions, "actions"), _as_rows(acts.actions_for_env, "actions"))
        kept = in_network_units(actions, self.spaces[1], action_scale="normalized") if self._is_ours else actions
        outputs = unstack(extras) if extras else [{}] * len(episodes)
        playing = np.empty(len(episodes), object)  # the episode that plays, its last action and extra model outputs
        for row, held in enumerate(zip(episodes, unstack(kept), outputs, strict=True)):
            playing[row] = held
        return Acted(actions, for_env, extras, {"playing": playing})

    def piece_names(self) -> dict[str, list[str]]:
        """Of the pieces, by side."""
        sides: dict[str, Any] = {"env_to_module": self.player.env_to_module, "module_to_env": self.player.module_to_env}
        if self._is_ours:
            return {side: [name for name, _ in pipeline.named()] for side, pipeline in sides.items()}
        return {side: [type(piece).__name__ for piece in pipeline.connectors] for side, pipeline in sides.items()}

    def _grown(self, observations: Tree, state: State) -> list[Any]:
        """The B episodes, with what was seen."""
        seen = unstack(map_leaves(np.array, observations))  # copies: pieces may write into them, and their owner does
        infos = [{}] * len(seen) if state.infos is None else state.infos
        grown = []
        for row, t in enumerate(state.t.tolist()):
            if t == 0:
                of = {"observation_space": self.spaces[0], "action_space": self._own_space}
                episode = self._kind(id_=f"episode-{state.episodes[row]}", **of)
                episode.add_env_reset(seen[row], dict(infos[row]))
            else:
                episode, action, outputs = state.memory["playing"][row]
                reward = float(state.rewards[row])
                episode.add_env_step(seen[row], action, reward, dict(infos[row]), extra_model_outputs=outputs)
                if self._lookback is not None and len(episode) >= self._lookback + SPARE:
                    episode = episode.cut(len_lookback_buffer=self._lookback)
            grown.append(episode)
        return grown


def _as_rows(items: Any, name: str) -> Tree:
    """Leaves (B, ...) of B items, unless they are that. Raises BadPiece."""
    if not isinstance(items, list):
        return items
    try:
        return stack(items, None)
    except BadEpisode as err:
        what = f"column {name!r} has items that differ from episode to episode: {err.what.replace('step', 'item', 1)}"
        fix = "give each episode an item of one structure and shape"
        raise BadPiece(what, where="module-to-env pipeline", fix=fix) from err
