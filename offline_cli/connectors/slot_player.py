"""Episodes that play side by side in slots, through pipelines; refuses to step environments, and to let rows sway each other.

Each slot has an episode as pieces know it. It grows with what the environment gave, and pieces may write into it, so that it is
no recording: who calls keeps the raw observations himself. Its actions are those of a recording as learners get them, in the
units of networks. So pieces that look at earlier actions see the same here and in a learner pipeline.

The forward pass sees blocks of a fixed number of rows, padded with copies, since float results differ with a batch's shape: an
episode is the same whatever plays beside it (with blocks of one row where a network's results differ with a row's place, too).
That does not hold for pieces that still learn from every slot's observations, such as a filter that is not frozen.

`lookback`: pieces can look back on so many steps at least, which bounds memory; None: on the whole episode.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from offline_cli.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from offline_cli.connectors.play_pipelines import PlayPipelines
from offline_cli.connectors.playing import PipelinePlayer
from offline_cli.connectors.policy_input import PolicyInput
from offline_cli.connectors.recorded_actions import RecordedActions
from offline_cli.converting.misfits import misfits
from offline_cli.episodes.buffers.stacking import stack
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode, BadPiece
from offline_cli.modules.action_units import in_network_units, network_space
from offline_cli.modules.distributions import ActionHead
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["SlotActs", "SlotPlayer"]

SPARE: Final = 256  # steps that an episode grows beyond its lookback before it is cut


@dataclass(frozen=True, slots=True, eq=False)
class SlotActs:
    """What S slots are to do next; rows of slots that play nothing are zeros."""

    actions: Tree  # leaves (S, ...): as they are recorded, in the dtypes of the action space
    actions_for_env: Tree  # leaves (S, ...)
    extra: Mapping[str, Tree]  # extra model outputs by name: leaves (S, ...)


class SlotPlayer:
    """Plays a module between its pipelines in `slots` slots; begin, act, step, act, step, ... , begin."""

    def __init__(
        self,
        rl_module: RLModule,
        pipelines: PlayPipelines,
        spaces: tuple[Space, Space],
        *,
        slots: int,
        explore: bool = False,
        rows: int | None = None,
        lookback: int | None = None,
    ) -> None:
        """`spaces`: the environment's. `rows`: of a forward pass; None: as many as there are slots."""
        self.pipelines = pipelines
        _stretch_as(rl_module, pipelines, spaces[1])
        module = _InBlocks(rl_module, rows or slots)
        self._player = PipelinePlayer(module, pipelines.env_to_module, pipelines.module_to_env, explore=explore)
        self._spaces, self._lookback = spaces, lookback
        self._recorded = RecordedActions(spaces[1])
        self._episodes: list[SingleAgentEpisode | None] = [None] * slots
        self._acted: dict[int, tuple[Tree, dict[str, Any]]] = {}  # by slot

    def begin(self, slot: int, observation: Tree, info: Mapping[str, Any] | None, *, id_: str) -> None:
        """An episode begins in a slot; `id_` is its own among all that play."""
        episode = SingleAgentEpisode(id_=id_, observation_space=self._spaces[0], action_space=network_space(self._spaces[1]))
        episode.add_env_reset(_copied(observation), dict(info or {}))
        self._episodes[slot] = episode

    def act(self, *, chance: Tensor | None = None, generator: torch.Generator | None = None) -> SlotActs:
        """The next actions of all slots that play; there must be one. `chance`: (S, k), see `PipelinePlayer.act`.

        Raises BadPiece where the pipelines give no actions, or others than the environment's; what pieces raise passes.
        """
        live = [slot for slot, episode in enumerate(self._episodes) if episode is not None]
        episodes = [episode for episode in self._episodes if episode is not None]
        drawn = None if chance is None else chance[live]
        acts = self._player.act(episodes, chance=drawn, generator=generator)
        extra = {name: _as_rows(items, name) for name, items in acts.extra.items()}
        actions, for_env = self._recorded(_as_rows(acts.actions), _as_rows(acts.actions_for_env))
        learned = in_network_units(actions, self._spaces[1], action_scale="normalized")
        self._acted = {slot: (_row(learned, row), acts.extra_of(row)) for row, slot in enumerate(live)}
        if len(live) == len(self._episodes):
            return SlotActs(actions, for_env, extra)
        whole = {name: self._scattered(tree, live) for name, tree in extra.items()}
        return SlotActs(self._scattered(actions, live), self._scattered(for_env, live), whole)

    def _scattered(self, rows: Tree, live: Sequence[int]) -> Tree:
        def put(leaf: Any) -> Any:
            whole = np.zeros((len(self._episodes), *leaf.shape[1:]), leaf.dtype)
            whole[live] = leaf
            return whole

        return map_leaves(put, rows)

    def step(
        self, slot: int, observation: Tree, reward: float, info: Mapping[str, Any] | None, *, terminated: bool, truncated: bool
    ) -> None:
        """What the environment answered to the slot's last action.

        The last observation of an episode goes through the env-to-module pipeline too, as in RLlib: pieces count it.
        """
        episode = self._episodes[slot]
        assert episode is not None, slot
        action, extra = self._acted[slot]
        episode.add_env_step(
            _copied(observation),
            action,
            reward,
            dict(info or {}),
            terminated=terminated,
            truncated=truncated,
            extra_model_outputs=extra,
        )
        if terminated or truncated:
            self._player.finish([episode])
            self._episodes[slot] = None
        elif self._lookback is not None and len(episode) >= self._lookback + SPARE:
            self._episodes[slot] = episode.cut(len_lookback_buffer=self._lookback)

    def rehearse(self, slot: int, *, chance: Tensor | None = None) -> None:
        """Raise what `act` would raise for this slot alone. Copies of episode and pieces are asked: nothing changes.

        Raises what copying raises, for pieces that cannot be copied.
        """
        episode = copy.deepcopy(self._episodes[slot])
        pieces = copy.deepcopy((self.pipelines.env_to_module, self.pipelines.module_to_env))
        player = PipelinePlayer(self._player.rl_module, *pieces, explore=self._player.explore)
        acts = player.act([episode], chance=None if chance is None else chance[[slot]])
        self._recorded(_as_rows(acts.actions), _as_rows(acts.actions_for_env))

    def drop(self, slot: int) -> None:
        """Forget the slot's episode, which does not go on."""
        self._episodes[slot] = None


def _stretch_as(rl_module: RLModule, pipelines: PlayPipelines, actions: Space) -> None:
    """Have actions stretched to the bounds that the module learned them by, which may be others than the environment's."""
    head = getattr(rl_module, "action_head", None)
    if isinstance(head, ActionHead) and not misfits(rl_module.action_space, actions, inferred=False, what="actions"):
        for piece in pipelines.module_to_env.pieces():
            if isinstance(piece, NormalizeAndClipActions):
                piece.stretched_by = head.stretched_by(actions)


def _row(actions: Tree, row: int) -> Tree:
    return map_leaves(lambda leaf: leaf[row], actions)


class _InBlocks:
    """A module whose forward passes see a fixed number of rows."""

    def __init__(self, module: RLModule, rows: int) -> None:
        self._module, self._rows = module, rows
        self._input = PolicyInput(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def forward_inference(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """See RLModule."""
        return self._in_blocks(self._module.forward_inference, batch)

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """See RLModule."""
        return self._in_blocks(self._module.forward_exploration, batch)

    def _in_blocks(self, forward: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        batch = self._input(batch)
        tensors = {name: tree for name, tree in batch.items() if all(isinstance(leaf, Tensor) for leaf in leaves(tree))}
        count = len(leaves(next(iter(tensors.values())))[0])
        if count == self._rows:
            return dict(forward(batch))
        others = {name: tree for name, tree in batch.items() if name not in tensors}
        outputs = []
        for first in range(0, count, self._rows):
            block = {name: map_leaves(lambda leaf, at=first: self._block(leaf, at), tree) for name, tree in tensors.items()}
            outputs.append(forward({**others, **block}))
        return {
            name: map_leaves(lambda *parts: torch.cat(parts)[:count], *(output[name] for output in outputs))
            for name in outputs[0]
        }

    def _block(self, leaf: Tensor, first: int) -> Tensor:
        """(rows, ...): those from `first` on, and then copies of the last."""
        part = leaf[first : first + self._rows]
        missing = self._rows - len(part)
        return torch.cat([part, part[-1:].expand(missing, *part.shape[1:])]) if missing else part


def _as_rows(items: Sequence[Any], name: str = "actions") -> Tree:
    if not isinstance(items, list):
        return items
    try:
        return stack(items, None)
    except BadEpisode as err:
        what = f"column {name!r} has items that differ from episode to episode: {err.what.replace('step', 'item', 1)}"
        fix = "give each episode an item of one structure and shape"
        raise BadPiece(what, where="module-to-env pipeline", fix=fix) from err


def _copied(observation: Tree) -> Tree:
    """Pieces may write into it, and whose it is may write over it."""
    return map_leaves(np.array, observation)
