"""The latest steps of all slots that play, as arrays that all of our pieces work on at once.

Each slot plays an episode, of which these hold the latest observation and as many steps before it as pieces look back on:
observations as pieces have left them, actions in the units of networks, rewards, the state of a module with memory. Pieces of
other code get episodes instead (`episodes_for`), which grow beside the arrays only where there is such a piece; what it wrote
into them is copied back (`taken_back`). Where that has no form in arrays, the rest of the call continues with episodes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import Batch, is_filed
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import stack, unstack
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = ["SlotWindows"]

SPARE: Final = 64  # steps that are kept beyond those looked back on, before these are moved to the front
Index = NDArray[np.int64]


class SlotWindows:
    """S slots. What pieces read is of the P that play, in order of their slots."""

    def __init__(self, slots: int, observation_space: Space, *, frames: int, steps: int, with_episodes: bool) -> None:
        """`frames`: observations that pieces look at, the latest included; `steps`: actions and rewards before it."""
        self._slots, self._own_space = slots, observation_space
        self._depth, self._steps = frames - 1, steps
        self._size = max(self._depth, steps) + 1 + SPARE
        self._at = max(self._depth, steps)  # where the latest observation stands in the windows
        self._has_acted = False  # since then
        self._latest: Tree | None = None  # leaves (S, ...): as the environment gave them
        self._frames: Tree | None = None  # leaves (S, size, ...)
        self._actions: Tree | None = None  # leaves (S, size, ...): at t what followed observation t
        self._rewards = np.zeros((slots, self._size if steps else 0))
        self._states: Tree | None = None  # leaves (S, ...)
        self._first_state: Tree | None = None
        self._length = np.zeros(slots, np.int64)
        self._plays = np.zeros(slots, np.bool_)
        self._ids = [""] * slots
        self._episodes: list[SingleAgentEpisode | None] | None = [None] * slots if with_episodes else None
        self._is_written = True  # into episodes: the latest observations as they are now
        self.live: Index = np.zeros(0, np.int64)  # (P,) slots that play
        self._all = False  # whether all do
        self.obs: Tree = np.zeros(0)  # leaves (P, ...): the latest observations, as pieces have left them
        self.space: Space = observation_space  # of these
        self.is_stacked = False  # whether columns of the batch are stacked where pieces work on episodes, too

    # ---- for who plays ----

    def begin(self, slots: Index, observations: Tree, ids: Sequence[str], episodes: Iterable[SingleAgentEpisode]) -> None:
        """These k slots begin: observations (k, ...); `episodes` are read where there are any beside the arrays."""
        self._advance()
        if self._latest is None:
            self._latest = map_leaves(lambda leaf: np.zeros((self._slots, *leaf.shape[1:]), leaf.dtype), observations)
        self._see(slots, observations)
        self._length[slots] = 0
        self._plays[slots] = True
        for slot, id_ in zip(slots.tolist(), ids, strict=True):
            self._ids[slot] = id_
        if self._episodes is not None:
            for slot, episode in zip(slots.tolist(), episodes, strict=True):
                self._episodes[slot] = episode
        if self._frames is not None:
            before = slice(self._at - self._depth, self._at)
            map_leaves(lambda leaf: leaf.__setitem__((slots, before), 0), self._frames)
        if self._states is not None:
            map_leaves(lambda leaf, first: leaf.__setitem__(slots, first), self._states, self._first_state)
        self._find_live()

    def _see(self, slots: Index, observations: Tree) -> None:
        assert self._latest is not None
        map_leaves(lambda held, leaf: held.__setitem__(slots, leaf), self._latest, observations)

    def _find_live(self) -> None:
        self.live = np.flatnonzero(self._plays)
        self._all = len(self.live) == self._slots

    def _advance(self) -> None:
        """Move on to the next observations, once the last ones were acted on."""
        if not self._has_acted:
            return
        self._has_acted = False
        self._at += 1
        if self._at + 1 < self._size:
            return
        back = max(self._depth, self._steps)

        def to_front(leaf: NDArray[Any]) -> None:
            leaf[:, :back] = leaf[:, self._at - back : self._at].copy()

        for held in (self._frames, self._actions):
            if held is not None:
                map_leaves(to_front, held)
        if self._steps:
            to_front(self._rewards)
        self._at = back

    def look(self) -> None:
        """The latest observations are looked at: pieces begin with what the environment gave."""
        self._advance()
        assert self._latest is not None, "an episode has begun"
        self.obs = map_leaves(np.array, self._rows(self._latest))
        self.space, self.is_stacked, self._is_written = self._own_space, False, True

    def _rows(self, tree: Tree) -> Tree:
        """Of the slots that play."""
        return tree if self._all else map_leaves(lambda leaf: leaf[self.live], tree)

    def commit(self) -> None:
        """Keep the latest observations as the pieces have left them."""
        if self._depth:
            self._put_frames()
        self._write_episodes()

    def act(self, actions: Tree | None, states: Tree | None) -> None:
        """What the slots that play do now: leaves (P, ...); `actions` None: no piece looks back on them."""
        self._has_acted = True
        if self._steps and actions is not None:
            self._actions = self._windowed(self._actions, actions)
            self._put(self._actions, actions)
        if states is not None and self._states is not None:
            self._states = map_leaves(self._put_state, self._states, states)

    def _put_state(self, held: NDArray[Any], leaf: NDArray[Any]) -> NDArray[Any]:
        wanted = np.result_type(held, leaf)
        held = held if held.dtype == wanted else held.astype(wanted)
        held[self.live] = leaf
        return held

    def step(self, slots: Index, observations: Tree, rewards: NDArray[Any]) -> None:
        """The environment has answered in these k slots: observations (k, ...), rewards (k,)."""
        self._see(slots, observations)
        if self._steps:
            self._rewards[slots, self._at] = rewards
        self._length[slots] += 1

    def last(self, slot: int) -> SlotWindows:
        """A slot alone, at the observation that its episode has ended with."""
        one = copy.copy(self)
        one._at, one._has_acted = self._at + 1, False
        one._play_alone(slot)
        one.look()
        return one

    def end(self, slots: Index) -> None:
        """These slots play no more."""
        self._plays[slots] = False
        for slot in slots.tolist() if self._episodes is not None else ():
            self._episodes[slot] = None  # type: ignore[index]
        self._find_live()

    def alone(self, slot: int) -> SlotWindows:
        """A copy in which a slot plays alone."""
        one = copy.copy(self)
        for name in ("_latest", "_frames", "_actions", "_states"):
            held = getattr(self, name)
            setattr(one, name, None if held is None else map_leaves(np.array, held))
        one._rewards = self._rewards.copy()
        if self._episodes is not None:
            one._episodes = [None] * self._slots
            one._episodes[slot] = copy.deepcopy(self._episodes[slot])
        one._play_alone(slot)
        return one

    def _play_alone(self, slot: int) -> None:
        self._plays = np.arange(self._slots) == slot
        self._find_live()

    def replace(self, slot: int, episode: SingleAgentEpisode) -> None:
        """Continue with another object for the slot's episode."""
        assert self._episodes is not None, "there is a piece that wants them"
        self._episodes[slot] = episode

    def begin_states(self, first: Tree) -> None:
        """The module remembers: each episode begins with this state."""
        self._first_state = first
        self._states = map_leaves(lambda leaf: np.repeat(leaf[None], self._slots, axis=0), first)

    # ---- for pieces ----

    def change(self, observations: Tree, space: Space | None) -> None:
        """Put observations (P, ...) of `space` in the place of the latest ones."""
        self.obs, self._is_written = observations, False
        if space is not None:
            self.space = space

    def frames(self, count: int) -> Tree:
        """Leaves (P, count, ...): the latest observations, the oldest first, zeros before an episode begins."""
        self._put_frames()
        which = slice(self._at + 1 - count, self._at + 1)
        return map_leaves(lambda leaf: leaf[:, which] if self._all else leaf[self.live, which], self._frames)

    def actions(self, count: int) -> Tree | None:
        """Leaves (P, count, ...) before the latest observation; those that are not `there` say nothing. None: none yet."""
        which = slice(self._at - count, self._at)
        return None if self._actions is None else map_leaves(lambda leaf: leaf[self.live, which], self._actions)

    def rewards(self, count: int) -> NDArray[np.float64]:
        """(P, count) before the latest observation; those that are not `there` say nothing."""
        return self._rewards[self.live, self._at - count : self._at]

    def there(self, count: int) -> NDArray[np.bool_]:
        """(P, count): which of so many steps before the latest observation are the episode's."""
        there: NDArray[np.bool_] = np.arange(count, 0, -1) <= self._length[self.live, None]
        return there

    @property
    def states(self) -> Tree:
        """Leaves (P, ...): the state of the module before the latest observation."""
        assert self._states is not None, "the module remembers"
        return map_leaves(lambda leaf: leaf[self.live], self._states)

    def _put_frames(self) -> None:
        self._frames = self._windowed(self._frames, self.obs)
        self._put(self._frames, self.obs)

    def _windowed(self, held: Tree | None, rows: Tree) -> Tree:
        if held is not None:
            return held
        return map_leaves(lambda leaf: np.zeros((self._slots, self._size, *leaf.shape[1:]), leaf.dtype), rows)

    def _put(self, held: Tree, rows: Tree) -> None:
        if self._all:
            map_leaves(lambda window, leaf: window.__setitem__((slice(None), self._at), leaf), held, rows)
        else:
            map_leaves(lambda window, leaf: window.__setitem__((self.live, self._at), leaf), held, rows)

    # ---- pieces of other code ----

    @property
    def has_episodes(self) -> bool:
        """Whether there are episodes beside the arrays."""
        return self._episodes is not None

    @property
    def ids(self) -> list[str]:
        """Of the episodes that play."""
        return [self._ids[slot] for slot in self.live.tolist()]

    def episodes(self) -> list[SingleAgentEpisode]:
        """Those that play, with the latest observations as pieces have left them."""
        assert self._episodes is not None, "there is a piece that wants them"
        self._write_episodes()
        return [episode for slot in self.live.tolist() if (episode := self._episodes[slot]) is not None]

    def _write_episodes(self) -> None:
        if self._is_written or self._episodes is None:
            return
        self._is_written = True
        for slot, row in zip(self.live.tolist(), unstack(self.obs), strict=True):
            episode = self._episodes[slot]
            assert episode is not None, slot
            episode.observation_space = self.space  # first: the old space need not contain the new observation
            episode.set_observations(at_indices=-1, new_data=map_leaves(np.copy, row))

    def filed(self, batch: Batch) -> Batch:
        """The batch as such a piece expects it here: columns filed by episode, unless they are stacked for good."""
        if self.is_stacked:
            return batch
        ids = [(id_,) for id_ in self.ids]

        def entries(held: Any) -> Any:
            if isinstance(held, list) or is_filed(held):
                return held
            return {id_: [item] for id_, item in zip(ids, unstack(held), strict=True)}

        return {name: entries(held) for name, held in batch.items()}

    def taken_back(self, batch: Batch) -> SlotWindows | list[SingleAgentEpisode]:
        """What such a piece wrote into the episodes, as arrays; the episodes where it has no such form."""
        episodes = self.episodes()
        seen = batch.get(Columns.OBS)
        filed = seen.items() if isinstance(seen, dict) and is_filed(seen) else ()
        if filed and [(key, len(held)) for key, held in filed] != [((id_,), 1) for id_ in self.ids]:
            return episodes
        return self if self.take(episodes) else episodes

    def take(self, episodes: Sequence[SingleAgentEpisode]) -> bool:
        """Take over what episodes hold of what the windows show; whether it could be done."""
        try:
            space = episodes[0].observation_space
            self.obs = stack([episode.get_observations(-1) for episode in episodes], space)
            self.space = self.space if space is None else space
            if self._frames is not None:
                self._take_frames(episodes)
            if self._steps:
                self._take_steps(episodes)
            self._take_states(episodes)
        except (BadEpisode, ValueError, TypeError, IndexError, KeyError):
            return False
        self._is_written = True
        return True

    def _take_frames(self, episodes: Sequence[SingleAgentEpisode]) -> None:
        for slot, episode in zip(self.live.tolist(), episodes, strict=True):
            found = episode.get_observations(slice(-self._depth - 1, None))
            if not isinstance(found, list):
                raise TypeError("a piece has numpy'ized an episode that goes on")
            if found[:-1]:
                rows = stack(found[:-1], episode.observation_space)
                map_leaves(lambda held, leaf, slot=slot: self._take_rows(held[slot], leaf), self._frames, rows)

    def _take_rows(self, window: NDArray[Any], rows: NDArray[Any]) -> None:
        """Put the rows before the latest observation into a slot's window."""
        if rows.dtype != window.dtype:
            raise ValueError(f"{rows.dtype} among {window.dtype}")
        window[self._at - len(rows) : self._at] = rows

    def _take_steps(self, episodes: Sequence[SingleAgentEpisode]) -> None:
        for slot, episode in zip(self.live.tolist(), episodes, strict=True):
            done, given = episode.get_actions(slice(-self._steps, None)), episode.get_rewards(slice(-self._steps, None))
            if len(done):
                rows = stack(done)
                self._actions = self._windowed(self._actions, rows)
                map_leaves(lambda held, leaf, slot=slot: self._take_rows(held[slot], leaf), self._actions, rows)
                self._rewards[slot, self._at - len(given) : self._at] = given

    def _take_states(self, episodes: Sequence[SingleAgentEpisode]) -> None:
        if self._states is None:
            return
        for slot, episode in zip(self.live.tolist(), episodes, strict=True):
            if (len(episode) or episode.t_started) and Columns.STATE_OUT in episode.extra_model_outputs:
                state = episode.get_extra_model_outputs(Columns.STATE_OUT, -1)
                map_leaves(lambda held, leaf, slot=slot: held.__setitem__(slot, leaf), self._states, state)
