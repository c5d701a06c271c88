"""What chooses actions for slots that play side by side: a policy alone, or between connector pieces; refuses to play itself.

Who plays tells a chooser of every episode that begins and of every step, and asks it for the actions of all slots at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypedDict

import torch

from offline_cli.connectors.blaming import blaming_pieces
from offline_cli.connectors.slot_player import SlotPlayer
from offline_cli.environments import Environment
from offline_cli.modules.rl_module import RLModule
from offline_cli.training.play_pieces import PlayPieces
from offline_cli.trees import Tree, map_leaves

__all__ = ["Chance", "Chooser", "Policy", "PolicyBetweenPieces"]


class Chance(TypedDict):
    """How actions are chosen."""

    seed: int  # of those that are drawn
    explore: bool  # drawn, not the likeliest


class Chooser(Protocol):
    """Chooses for S slots, whose observations lie in one tree with leaves (S, ...)."""

    def begin(self, slot: int, episode: int, observations: Tree, info: object) -> None:
        """An episode begins in a slot; `episode` is its number. An `info` that is no mapping is left out."""

    def choose(self, observations: Tree) -> Tree:
        """Actions as the environment takes them, leaves (S, ...)."""

    def step(self, slot: int, observations: Tree, reward: float, info: object, *, terminated: bool, truncated: bool) -> None:
        """The environment has answered to a slot's action."""


class Policy:
    """A policy alone: it sees the observations as they are, and remembers nothing. See Chooser."""

    def __init__(self, module: RLModule, *, seed: int, explore: bool) -> None:
        """`seed`: of the actions that are drawn where `explore`."""
        self._module, self._explore, self._device = module, explore, _device_of(module)
        self._generator = torch.Generator(self._device).manual_seed(seed) if explore else None

    def begin(self, slot: int, episode: int, observations: Tree, info: object) -> None:
        """See Chooser."""

    def choose(self, observations: Tree) -> Tree:
        """See Chooser."""
        tensors = map_leaves(lambda leaf: torch.as_tensor(leaf, device=self._device), observations)
        actions = self._module.act(tensors, explore=self._explore, generator=self._generator)
        return self._module.action_head.for_env(map_leaves(lambda leaf: leaf.cpu().numpy(), actions))

    def step(self, slot: int, observations: Tree, reward: float, info: object, *, terminated: bool, truncated: bool) -> None:
        """See Chooser."""


class PolicyBetweenPieces:
    """A policy between its two pipelines, which see whole episodes. See Chooser."""

    def __init__(
        self, module: RLModule, pieces: PlayPieces, environment: Environment, *, slots: int, seed: int, explore: bool
    ) -> None:
        """Raises what `PlayPieces.pipelines` raises. Errors while it plays name piece, episode and step (BadData, BadPiece)."""
        device = _device_of(module)
        pipelines = pieces.pipelines(environment, device=device)
        spaces = environment.observation_space, environment.action_space
        self._player = SlotPlayer(module, pipelines, spaces, slots=slots, explore=explore, lookback=pieces.lookback)
        self._generator = torch.Generator(device).manual_seed(seed) if explore else None
        self._name = environment.name
        self._playing: dict[int, tuple[int, int]] = {}  # episode and steps, by slot

    def begin(self, slot: int, episode: int, observations: Tree, info: object) -> None:
        """See Chooser."""
        self._playing[slot] = episode, 0
        self._player.begin(slot, _row(observations, slot), _info(info), id_=f"episode-{episode}")

    def choose(self, observations: Tree) -> Tree:
        """See Chooser."""
        with blaming_pieces(lambda: self._place(self._first_bad())):
            return self._player.act(generator=self._generator).actions_for_env

    def step(self, slot: int, observations: Tree, reward: float, info: object, *, terminated: bool, truncated: bool) -> None:
        """See Chooser."""
        episode, steps = self._playing[slot]
        self._playing[slot] = episode, steps + 1
        with blaming_pieces(lambda: self._place(slot)):
            ends = {"terminated": terminated, "truncated": truncated}
            self._player.step(slot, _row(observations, slot), reward, _info(info), **ends)
        if terminated or truncated:
            del self._playing[slot]

    def _place(self, slot: int) -> str:
        episode, steps = self._playing[slot]
        return f"{self._name}, episode {episode}, step {steps}"

    def _first_bad(self) -> int:
        """The first slot for which the pieces raise alone; the first that plays where they do so for none."""
        live = sorted(self._playing)
        for slot in live if len(live) > 1 else []:
            try:
                self._player.rehearse(slot)
            except Exception:  # noqa: BLE001  the same failure again, which is what is looked for
                return slot
        return live[0]


def _row(observations: Tree, slot: int) -> Tree:
    return map_leaves(lambda leaf: leaf[slot], observations)


def _info(info: object) -> Mapping[str, object] | None:
    return info if isinstance(info, Mapping) else None


def _device_of(module: RLModule) -> torch.device:
    """Where the module's weights are."""
    return next(module.parameters()).device
