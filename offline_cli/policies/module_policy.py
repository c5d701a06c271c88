"""An RLModule as a policy: alone (`ModulePolicy`), or between connector pipelines as in RLlib (`PolicyForPieces`).
`PolicyForPieces` keeps the ongoing episodes, which takes three times as long; it also plays recurrent modules.

Extra model outputs follow RLlib: `action_dist_inputs`, and `action_logp`, which is 0 for greedy actions. Box actions are
recorded like RLlib's, with the scale `normalized`: the module's outputs, which may exceed [-1, 1], before stretching and
clipping. Integer boxes are recorded as the environment takes them; their `action_logp` is that of the unrounded action.
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

SPARE: Final = 64  # extra steps that an episode grows beyond the lookback before it is cut


def open_module(
    module: RLModule,
    name: str,
    environment: Environment | None,
    options: PolicyOptions,
    *,
    fingerprint: str,
    trained: PipelineSpec | None = None,
) -> Policy:
    """Open the policy of a module. It plays through pieces if the user gave some, it was trained with some, or it is recurrent.

    Raises SpaceMismatch, BadConfig.
    """
    play: PlaySpec | None = replace(options.pieces, trained=trained)
    if options.pieces.is_default and trained is None and not module.is_stateful():
        environment = fitting((module.observation_space, module.action_space), name, environment)
        play = None
    environment = environment or fitting((None, None), name, None)
    return module_policy(module, play, environment, device=torch.device(options.device), fingerprint=fingerprint, name=name)


def module_policy(
    module: RLModule, pieces: PlaySpec | None, environment: Environment, *, device: Any, fingerprint: str = "", name: str = ""
) -> Policy:
    """The policy of a module in an environment that it fits, with `pieces` around it (None: without). `name`: for messages.

    Raises like `PlaySpec.build_in`.
    """
    if pieces is None:
        return ModulePolicy(module, environment, device=device, fingerprint=fingerprint)
    place, own = f"--policy {name} in {environment.name}", (module.observation_space, module.action_space)
    pipelines = pieces.build_in(environment, *own, where=place, device=device)
    every, head = pipelines.pieces(), module.action_head
    stretching = [piece for piece in every if isinstance(piece, NormalizeAndClipActions)]
    if not misfits(own[1], environment.action_space, inferred=False, what="actions"):
        for piece in stretching:  # use the bounds that scaled the training data
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
    policy.needs_finite = are_ours  # the user's pieces may replace NaN
    return policy


class ModulePolicy(Policy):
    """A stateless module without pieces."""

    needs_finite = True

    def __init__(self, module: RLModule, environment: Environment, *, device: Any, fingerprint: str) -> None:
        """`environment`: its spaces must fit the module."""
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
        if self._is_choice:  # faster than the general case below
            actions = acted.cpu().numpy().astype(self.spaces[1].dtype, copy=False)
            return Acted(actions, actions, extras)
        arrays = map_leaves(lambda leaf: leaf.cpu().numpy(), acted)
        return Acted(*self._recorded(arrays, self._for_env(arrays)), extras)


class PolicyForPieces(Policy):
    """A module between its pipelines, which get the ongoing episodes: our class or RLlib's.

    Each call adds a step to the episodes. Pieces may change them, so they are no recording: the caller keeps the raw
    observations. Their actions are in network units, so that pieces which read earlier actions see the same as in a learner
    pipeline. Pieces are frozen.
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
        bounds. `head`: samples actions; None: the module samples with global generators. `episode_kind`: our episode class or
        RLlib's. `lookback`: see PlaySpec."""
        super().__init__(environment, fingerprint)
        self.player = player
        self.action_scale = "normalized" if is_normalized and not only_discrete(self.spaces[1]) else "env"
        self._head, self._kind, self._lookback, self._device = head, episode_kind, lookback, device
        self._is_ours = issubclass(episode_kind, SingleAgentEpisode)
        self._own_space = network_space(self.spaces[1]) if self._is_ours else self.spaces[1]
        self._recorded = RecordedActions(self.spaces[1])

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy. Raises BadPiece for pipelines that return no actions, or actions that do not fit the environment."""
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
        playing = np.empty(len(episodes), object)  # ongoing episode, last action and extra model outputs
        for row, held in enumerate(zip(episodes, unstack(kept), outputs, strict=True)):
            playing[row] = held
        return Acted(actions, for_env, extras, {"playing": playing})

    def piece_names(self) -> dict[str, list[str]]:
        """Names of the pieces by pipeline."""
        sides: dict[str, Any] = {"env_to_module": self.player.env_to_module, "module_to_env": self.player.module_to_env}
        if self._is_ours:
            return {side: [name for name, _ in pipeline.named()] for side, pipeline in sides.items()}
        return {side: [type(piece).__name__ for piece in pipeline.connectors] for side, pipeline in sides.items()}

    def _grown(self, observations: Tree, state: State) -> list[Any]:
        """The B episodes with the new observations added."""
        seen = unstack(map_leaves(np.array, observations))  # copies: pieces and the caller may overwrite them
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
    """Stack B items to leaves (B, ...), unless they are stacked. Raises BadPiece if they do not stack."""
    if not isinstance(items, list):
        return items
    try:
        return stack(items, None)
    except BadEpisode as err:
        what = f"column {name!r} has items that differ between episodes: {err.what.replace('step', 'item', 1)}"
        fix = "give all episodes items of the same structure and shape"
        raise BadPiece(what, where="module-to-env pipeline", fix=fix) from err
