"""Plays a module through its pipelines in slots, one episode per slot; rows do not influence each other.

Our own pieces work on the latest steps of all slots at once (`slot_windows.py`). For pieces of other code each slot has an
episode, too. Pieces may write into both, so neither is a recording: the caller keeps the raw observations. Actions in them are
those of a recording as learners get them, in the units of networks, so pieces that look at earlier actions see the same here
and in a learner pipeline.

The forward pass sees blocks of a fixed number of rows, padded with copies, since float results differ with a batch's shape: an
episode is the same whatever plays beside it (with blocks of one row where a network's results differ with a row's place, too).

`lookback`: pieces can look back on at least that many steps, which bounds memory; None: on the whole episode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.module_to_env.default_pipeline import NormalizeAndClipActions
from offline_cli.connectors.pipeline_player import (
    Acts,
    PipelinePlayer,
    PolicyInput,
    RecordedActions,
    frames_looked_at,
    steps_looked_at,
)
from offline_cli.connectors.pipeline_spec import PlayPipelines
from offline_cli.connectors.slot_windows import SlotWindows
from offline_cli.converting.fitting import misfits
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import stack
from offline_cli.errors import BadEpisode, BadPiece
from offline_cli.modules.action_units import in_network_units, network_space
from offline_cli.modules.distributions import ActionHead
from offline_cli.modules.drawing import straight_forward
from offline_cli.modules.rl_module import RLModule, initial_state
from offline_cli.spaces import Space
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["SlotError", "SlotPlayer"]

SPARE: Final = 256  # steps that an episode grows beyond its lookback before it is cut
RAISED: Final = (Exception, SystemExit)
Index = NDArray[np.int64]


class SlotError(Exception):
    """A piece raised `cause` for the last observation of the episode in `slot`."""

    def __init__(self, slot: int, cause: BaseException) -> None:
        super().__init__(slot)
        self.slot, self.cause = slot, cause


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
        through_episodes: bool = False,
    ) -> None:
        """`spaces`: the environment's. `rows`: of a forward pass; None: as many as there are slots. `through_episodes`: every
        piece works on episodes, also where it could on arrays; the results are the same."""
        self.pipelines = pipelines
        _stretch_as(rl_module, pipelines, spaces[1])
        module = _InBlocks(rl_module, rows or slots)
        self._player = PipelinePlayer(module, pipelines.env_to_module, pipelines.module_to_env, explore=explore)
        self._spaces, self._lookback = spaces, lookback
        self._recorded = RecordedActions(spaces[1])
        self._episodes: list[SingleAgentEpisode | None] = [None] * slots
        self._wants_episodes = pipelines.env_to_module.wants_episodes or pipelines.module_to_env.wants_episodes
        self._with_episodes = self._wants_episodes or through_episodes
        self._keeps_actions = self._with_episodes or steps_looked_at(pipelines) > 0
        self._windows = SlotWindows(
            slots,
            spaces[0],
            frames=frames_looked_at(pipelines),
            steps=steps_looked_at(pipelines),
            with_episodes=self._with_episodes,
        )
        if rl_module.is_stateful():
            self._windows.begin_states(initial_state(rl_module))
        self._on_arrays = not through_episodes
        self._live: list[int] = []
        self._acted: tuple[Tree, Mapping[str, Tree], dict[int, int]] = None, {}, {}  # actions, extra outputs, row of each slot

    def begin(self, slots: Index, observations: Tree, infos: NDArray[Any] | None, *, ids: Sequence[str]) -> None:
        """Episodes begin in k slots: observations (k, ...), infos (k,); ids are their own among all that play."""
        if self._with_episodes:
            for row, slot in enumerate(slots.tolist()):
                self._episodes[slot] = self._begun(_row(observations, row), _info(infos, row), ids[row])
        self._windows.begin(slots, observations, ids, self._held(slots.tolist()))
        self._live = self._windows.live.tolist()

    def _begun(self, observation: Tree, info: Mapping[str, Any] | None, id_: str) -> SingleAgentEpisode:
        episode = SingleAgentEpisode(id_=id_, observation_space=self._spaces[0], action_space=network_space(self._spaces[1]))
        episode.add_env_reset(_copied(observation), dict(info or {}))
        return episode

    def act(self, *, chance: Tensor | None = None, generator: torch.Generator | None = None) -> Acts:
        """The next actions of all S slots, of which one must play; rows of others are zeros. Actions are in the dtypes of the
        action space, extra outputs leaves (S, ...). `chance`: (S, k), see `PipelinePlayer.act`.

        Raises BadPiece where the pipelines give no actions, or others than the environment's; what pieces raise passes.
        """
        live, windows = self._live, self._windows
        everybody = len(live) == len(self._episodes)
        drawn = chance if chance is None or everybody else chance[live]
        if self._on_arrays:
            windows.look()
            acts = self._player.act(windows, chance=drawn, generator=generator)
            if self._wants_episodes:  # where one has left what has no form in arrays, all pieces get episodes from now on
                self._on_arrays = windows.take(self._held(self._live))
        else:
            acts = self._player.act(self._held(self._live), chance=drawn, generator=generator)
        extra = {name: _as_rows(items, name) for name, items in acts.extra.items()}
        actions, for_env = self._recorded(_as_rows(acts.actions), _as_rows(acts.actions_for_env))
        learned = in_network_units(actions, self._spaces[1], action_scale="normalized") if self._keeps_actions else None
        windows.act(learned, extra.get(Columns.STATE_OUT))
        if self._with_episodes:
            self._acted = learned, extra, {slot: row for row, slot in enumerate(live)}
        if everybody:
            return Acts(actions, for_env, extra)
        whole = {name: self._scattered(tree, live) for name, tree in extra.items()}
        return Acts(self._scattered(actions, live), self._scattered(for_env, live), whole)

    def _held(self, slots: Sequence[int]) -> list[SingleAgentEpisode]:
        """The episodes of these slots; none where all pieces work on arrays."""
        return [episode for slot in slots if (episode := self._episodes[slot]) is not None]

    def _scattered(self, rows: Tree, live: Sequence[int]) -> Tree:
        def put(leaf: Any) -> Any:
            whole = np.zeros((len(self._episodes), *leaf.shape[1:]), leaf.dtype)
            whole[live] = leaf
            return whole

        return map_leaves(put, rows)

    def step(
        self,
        slots: Index,
        observations: Tree,
        rewards: NDArray[Any],
        infos: NDArray[Any] | None,
        *,
        terminated: NDArray[np.bool_] | None = None,
        truncated: NDArray[np.bool_] | None = None,
    ) -> None:
        """What the environment answered to the last actions of k slots: observations (k, ...), all others (k,). With flags all
        of these episodes have ended.

        The last observation of an episode goes through the env-to-module pipeline too, as in RLlib: pieces count it. What they
        raise for it passes as SlotError.
        """
        self._windows.step(slots, observations, rewards)
        for row, slot in enumerate(slots.tolist() if self._with_episodes else ()):
            flags = {
                "terminated": terminated is not None and bool(terminated[row]),
                "truncated": truncated is not None and bool(truncated[row]),
            }
            try:
                self._grow(slot, _row(observations, row), float(rewards[row]), _info(infos, row), **flags)
            except RAISED as err:
                raise SlotError(slot, err) from err
        if terminated is not None or truncated is not None:
            self._end(slots)

    def _grow(
        self, slot: int, observation: Tree, reward: float, info: Mapping[str, Any] | None, *, terminated: bool, truncated: bool
    ) -> None:
        """Add a step to the slot's episode."""
        episode = self._episodes[slot]
        assert episode is not None, slot
        actions, extra, rows = self._acted
        row = rows[slot]
        episode.add_env_step(
            _copied(observation),
            _row(actions, row),
            reward,
            dict(info or {}),
            terminated=terminated,
            truncated=truncated,
            extra_model_outputs={name: _row(tree, row) for name, tree in extra.items()},
        )
        if not episode.is_done and self._lookback is not None and len(episode) >= self._lookback + SPARE:
            self._episodes[slot] = cut = episode.cut(len_lookback_buffer=self._lookback)
            self._windows.replace(slot, cut)

    def _end(self, slots: Index) -> None:
        for slot in slots.tolist():
            episode = self._episodes[slot]
            try:
                self._player.finish(self._windows.last(slot) if episode is None else [episode])
            except RAISED as err:
                raise SlotError(slot, err) from err
            self._episodes[slot] = None
        self._windows.end(slots)
        self._live = self._windows.live.tolist()

    def rehearse(self, slot: int, *, chance: Tensor | None = None) -> None:
        """Raise what `act` would raise for this slot alone. Copies of episode and pieces are asked: nothing changes.

        Raises what copying raises, for pieces that cannot be copied.
        """
        pieces = copy.deepcopy(tuple(self.pipelines.sides().values()))
        player = PipelinePlayer(self._player.rl_module, *pieces, explore=self._player.explore)
        drawn = None if chance is None else chance[[slot]]
        if self._on_arrays:
            windows = self._windows.alone(slot)
            windows.look()
            acts = player.act(windows, chance=drawn)
        else:
            acts = player.act([copy.deepcopy(self._episodes[slot])], chance=drawn)
        self._recorded(_as_rows(acts.actions), _as_rows(acts.actions_for_env))

    def drop(self, slot: int) -> None:
        """Forget the slot's episode, which does not continue."""
        self._episodes[slot] = None
        self._windows.end(np.array([slot]))
        self._live = self._windows.live.tolist()


def _stretch_as(rl_module: RLModule, pipelines: PlayPipelines, actions: Space) -> None:
    """Have actions stretched to the bounds that the module learned them by, which may be others than the environment's."""
    head = getattr(rl_module, "action_head", None)
    if isinstance(head, ActionHead) and not misfits(rl_module.action_space, actions, inferred=False, what="actions"):
        for piece in pipelines.module_to_env.pieces():
            if isinstance(piece, NormalizeAndClipActions):
                piece.stretched_by = head.stretched_by(actions)


def _row(actions: Tree, row: int) -> Tree:
    return map_leaves(lambda leaf: leaf[row], actions)


def _named(straight: Callable[[Tensor], Tensor]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The quick forward pass of a plain network, as a module's."""
    return lambda batch: {Columns.ACTION_DIST_INPUTS: straight(batch[Columns.OBS].float())}


class _InBlocks:
    """A module whose forward passes see a fixed number of rows."""

    def __init__(self, module: RLModule, rows: int) -> None:
        self._module, self._rows = module, rows
        self._input = PolicyInput(module)
        watched = {"forward_inference", "forward_exploration"} & vars(module).keys()  # calls are watched
        straight = None if watched else straight_forward(module)
        self._straight = None if straight is None else _named(straight)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def forward_inference(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """See RLModule."""
        return self._in_blocks(self._straight or self._module.forward_inference, batch)

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """See RLModule."""
        return self._in_blocks(self._straight or self._module.forward_exploration, batch)

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


def _info(infos: NDArray[Any] | None, row: int) -> Mapping[str, Any] | None:
    return None if infos is None else infos[row]


def _copied(observation: Tree) -> Tree:
    """A copy, because pieces may write into it, and its owner may overwrite it."""
    return map_leaves(np.array, observation)
