"""Collects the steps of many slots as they come, and makes whole episodes of them: for `record` and for `Recorder`.

A step is written at once, for all slots, into one row of a block (steps, S, ...) of each leaf. A block that is full is cut into
the pieces of its slots' episodes, and used again; so nothing is done for a slot at a step at which nothing ends.

A recorded game is divided into the episodes of its agents by whole arrays. An agent's episode is what its agent was shown, in
order; it has the id of the game with module and agent, as episodes of other sources with several agents have
(`agent_episode_id`). A dataset has one observation and one action space: agents of other spaces have a dataset of their own. A
reward that an agent got before its first action belongs to its first step. An agent that never acted has no episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.environments import ACTS, OBS, REWARD, SHOWN, STATE, TERMINATED, TRUNCATED
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.step_rows import agent_episode_id
from offline_cli.playing.copies import DROPPED, KeptInfo
from offline_cli.policies.policy import Acted
from offline_cli.spaces import Space, same_space
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten, leaves, rows_of, unflatten_like

MAX_STEPS: Final = 256  # of a block
BLOCK_BYTES: Final = 16 << 20  # of a block, where one step takes less
OUTPUTS: Final = "model outputs"
Pieces = list[NDArray[Any]]  # (steps, ...) one after the other


@dataclass(frozen=True, slots=True, eq=False)
class RecordedEpisode:
    """An episode that has ended."""

    like: Any  # (observations, actions, extra model outputs, rewards): the structure of `leaves`
    leaves: Sequence[Pieces]  # of each leaf: together (T+1, ...) observations, (T, ...) of all else
    steps: int  # T
    flags: tuple[bool, bool]  # terminated, truncated
    infos: Sequence[tuple[int, KeptInfo]]  # with the step at which each came, from 0 to T

    @property
    def nbytes(self) -> int:
        """Of its arrays."""
        return sum(piece.nbytes for pieces in self.leaves for piece in pieces)


class EpisodeCollector:
    """Rows of S slots, from steps to episodes. See StepSink."""

    def __init__(self, slots: int, *_: object) -> None:
        """See MakeSink."""
        self._t = np.zeros(slots, np.int64)  # (S,) steps of the episode that is under way
        self._cut = [0] * slots  # of these, those that are in pieces already; the others are the latest of the blocks
        self._pieces: list[list[Pieces]] = []  # of each slot, of each leaf
        self._infos: list[list[tuple[int, KeptInfo]]] = [[] for _ in range(slots)]
        self._like: Any = None  # of a step, once there is one: see RecordedEpisode
        self._blocks: list[NDArray[Any]] = []  # (steps, S, ...) of each leaf
        self._filled = 0  # steps in them

    def step(
        self, rows: Any, observations: Tree, infos: Sequence[KeptInfo] | None, acted: Acted, rewards: NDArray[np.float64]
    ) -> None:
        """See StepSink. Raises BadData for extra model outputs that are not those of the steps before, or no numbers."""
        step = observations, acted.actions, dict(acted.extras), rewards
        new = leaves(step)
        if self._like is None:
            self._start(step, new)
        is_same = list(step[2]) == list(self._like[2]) and len(new) == len(self._blocks)
        if not is_same or any(
            leaf.dtype != block.dtype or leaf.shape[1:] != block.shape[2:]
            for leaf, block in zip(new, self._blocks, strict=True)
        ):
            what = f"model outputs in another form than in the steps before: {', '.join(step[2]) or 'none'}"
            raise BadData(what, where=OUTPUTS, fix="give the same outputs at every step")
        if self._filled == len(self._blocks[-1]):
            self._cut_all()
        for block, leaf in zip(self._blocks, new, strict=True):
            block[self._filled, rows] = leaf
        self._filled += 1
        if infos is not None:
            slots = np.arange(len(self._t))[rows].tolist()
            for slot, at, info in zip(slots, self._t[rows].tolist(), infos, strict=True):
                if info:
                    self._infos[slot].append((at, info))
        self._t[rows] += 1

    def end(self, slot: int, terminated: bool, truncated: bool, final: Tree, info: KeptInfo) -> RecordedEpisode:
        """See StepSink."""
        self._cut_one(slot)
        steps, infos, parts = int(self._t[slot]), self._infos[slot], self._pieces[slot]
        for pieces, leaf in zip(parts, leaves(final), strict=False):  # observations come first
            pieces.append(np.asarray(leaf)[None].copy())
        self._t[slot], self._cut[slot], self._infos[slot], self._pieces[slot] = 0, 0, [], [[] for _ in self._blocks]
        flags = terminated, truncated
        return RecordedEpisode(self._like, parts, steps, flags, [*infos, (steps, info)] if info else infos)

    def _start(self, step: Any, new: Sequence[NDArray[Any]]) -> None:
        if strange := [path for path, leaf in flatten(step[2]) if leaf.dtype.kind not in "biuf"]:
            fix = "numbers alone; what is not to be recorded, take out of the batch"
            raise BadData(f"model outputs that are not numbers: {', '.join(strange)}", where=OUTPUTS, fix=fix)
        slots = len(self._t)
        size = slots * sum(leaf.itemsize * int(np.prod(leaf.shape[1:])) for leaf in new)
        steps = max(1, min(MAX_STEPS, BLOCK_BYTES // max(1, size)))
        self._like = step
        self._blocks = [np.empty((steps, slots, *leaf.shape[1:]), leaf.dtype) for leaf in new]
        self._pieces = [[[] for _ in new] for _ in range(slots)]

    def _cut_all(self) -> None:
        for slot in np.flatnonzero(self._t).tolist():
            self._cut_one(slot)
        self._filled = 0

    def _cut_one(self, slot: int) -> None:
        """Copy what the blocks have of a slot's episode into its pieces."""
        count = int(self._t[slot]) - self._cut[slot]
        if count:
            for pieces, block in zip(self._pieces[slot], self._blocks, strict=True):
                pieces.append(block[self._filled - count : self._filled, slot].copy())
        self._cut[slot] += count


def batch_of(episodes: Sequence[RecordedEpisode], ids: Sequence[str], spaces: tuple[Space, Space]) -> EpisodeBatch:
    """The episodes as one batch. `spaces`: of observations and actions."""
    each = zip(*(episode.leaves for episode in episodes), strict=True)
    rows = [np.concatenate([piece for pieces in parts for piece in pieces]) for parts in each]
    obs, actions, extra, rewards = unflatten_like(episodes[0].like, rows)
    starts = np.cumsum([0, *(episode.steps for episode in episodes)]).astype(np.int64)
    infos: list[dict[str, Any]] | None = None
    if any(info.kept for episode in episodes for _, info in episode.infos):
        infos = [{} for _ in range(int(starts[-1]) + len(episodes))]
        for number, episode in enumerate(episodes):
            for at, info in episode.infos:
                infos[int(starts[number]) + number + at] = info.kept
    flags = np.array([episode.flags for episode in episodes])
    return EpisodeBatch(
        ids=tuple(ids),
        starts=starts,
        obs=obs,
        actions=actions,
        rewards=rewards,
        terminated=flags[:, 0],
        truncated=flags[:, 1],
        extra=extra,
        infos=infos,
        observation_space=spaces[0],
        action_space=spaces[1],
    )


def count_dropped(episodes: Sequence[RecordedEpisode], tally: Tally) -> None:
    """Count the entries of infos that were left out, by key."""
    for episode in episodes:
        for _, info in episode.infos:
            for key in info.dropped:
                tally.assume(f"{DROPPED}: {key}")


# ---- episodes of agents ----


@dataclass(frozen=True, slots=True, eq=False)
class AgentEpisodes:
    """Of the agents of one kind, in the games of one recording."""

    spaces: tuple[Space, Space]  # of each agent's observations and actions
    module_of: dict[str, str]  # by agent, in order

    @classmethod
    def kinds(cls, agents: Mapping[str, tuple[Space, Space]], module_of: Mapping[str, str]) -> list[AgentEpisodes]:
        """Of each kind of agents, whose spaces and modules these are."""
        found: list[AgentEpisodes] = []
        for agent, spaces in agents.items():
            kind = next((one for one in found if all(map(same_space, one.spaces, spaces))), None)
            if kind is None:
                kind = cls(spaces, {})
                found.append(kind)
            kind.module_of[agent] = module_of[agent]
        return found

    def divided(self, games: EpisodeBatch, written: frozenset[str]) -> EpisodeBatch | None:
        """The episodes of all agents, game by game, but those that are `written` already; None: there are none."""
        parts = [self._of_agent(games, agent, module) for agent, module in self.module_of.items()]
        whole = EpisodeBatch.concat([part for part, _ in parts if len(part)]) if any(len(part) for part, _ in parts) else None
        if whole is None:
            return None
        game = np.concatenate([which for _, which in parts])
        index = [at for at in np.argsort(game, kind="stable").tolist() if whole.ids[at] not in written]
        return whole.select(index) if index else None

    def _of_agent(self, games: EpisodeBatch, agent: str, module: str) -> tuple[EpisodeBatch, NDArray[np.int64]]:
        """Its episodes, and which games they are of."""
        state: NDArray[np.float64] = games.obs[agent][STATE]
        acting, game = state[:, ACTS] > 0, np.repeat(np.arange(len(games)), games.lengths + 1)
        acts = np.bincount(game[acting], minlength=len(games))
        rows, which = np.flatnonzero((state[:, SHOWN] > 0) & (acts > 0)[game]), np.flatnonzero(acts)
        starts = np.concatenate([[0], np.cumsum(acts[which])]).astype(np.int64)
        first, last = starts[:-1] + np.arange(len(which)), starts[1:] + np.arange(len(which))  # of each episode, among `rows`
        shown_rewards = state[rows, REWARD]
        rewards = np.delete(shown_rewards, first)
        rewards[starts[:-1]] += shown_rewards[first]
        step, ends = np.flatnonzero(acting[games.step_rows()]), state[rows[last]]
        ids = tuple(games.ids[number] for number in which.tolist())
        found = EpisodeBatch(
            ids=tuple(agent_episode_id(name, module, agent) for name in ids),
            starts=starts,
            obs=rows_of(games.obs[agent][OBS], rows),
            actions=rows_of(games.actions[agent], step),
            rewards=rewards,
            terminated=ends[:, TERMINATED] > 0,
            truncated=ends[:, TRUNCATED] > 0,
            extra={name: rows_of(tree, step) for name, tree in games.extra.get(agent, {}).items()},
            infos=None if games.infos is None else [games.infos[row].get(agent) or {} for row in rows.tolist()],
            agent_ids=(agent,) * len(which),
            module_ids=(module,) * len(which),
            multi_agent_ids=ids,
            observation_space=self.spaces[0],
            action_space=self.spaces[1],
        )
        return found, which
