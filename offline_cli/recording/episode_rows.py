"""Collect the steps of parallel slots into whole episodes, for `record` and `Recorder`.

A step of all slots is one row of a block (steps, S, ...) per leaf. A full block is cut into pieces of its slots' episodes and
reused, so steps without an episode end need no work per slot.

A recorded game is split into its agents' episodes with whole-array operations. An agent's episode has the observations that the
agent was shown, in order; its id combines game, module and agent (`agent_episode_id`). A dataset has one observation and one
action space, so agents with other spaces go to other datasets. A reward before an agent's first action is added to its first
step. An agent that never acted has no episode.
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

MAX_STEPS: Final = 256  # steps of a block
BLOCK_BYTES: Final = 16 << 20  # size of a block, unless one step is larger
OUTPUTS: Final = "model outputs"
Pieces = list[NDArray[Any]]  # consecutive parts (steps, ...)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedEpisode:
    """A finished episode."""

    like: Any  # (observations, actions, extra model outputs, rewards): the structure of `leaves`
    leaves: Sequence[Pieces]  # pieces of each leaf: in all (T+1, ...) for observations, else (T, ...)
    steps: int  # T
    flags: tuple[bool, bool]  # terminated, truncated
    infos: Sequence[tuple[int, KeptInfo]]  # (step, info), step from 0 to T

    @property
    def nbytes(self) -> int:
        """Size of its arrays."""
        return sum(piece.nbytes for pieces in self.leaves for piece in pieces)


class EpisodeCollector:
    """StepSink that collects the steps of S slots into RecordedEpisodes."""

    def __init__(self, slots: int, *_: object) -> None:
        """See MakeSink."""
        self._t = np.zeros(slots, np.int64)  # (S,) steps of the current episode
        self._cut = [0] * slots  # of these, steps already copied to pieces; the rest are the last rows of the blocks
        self._pieces: list[list[Pieces]] = []  # by slot and leaf
        self._infos: list[list[tuple[int, KeptInfo]]] = [[] for _ in range(slots)]
        self._like: Any = None  # structure of a step, from the first one: see RecordedEpisode
        self._blocks: list[NDArray[Any]] = []  # (steps, S, ...) of each leaf
        self._filled = 0  # steps in them

    def step(
        self, rows: Any, observations: Tree, infos: Sequence[KeptInfo] | None, acted: Acted, rewards: NDArray[np.float64]
    ) -> None:
        """See StepSink. Raises BadData for extra model outputs that differ from earlier steps', or are no numbers."""
        step = observations, acted.actions, dict(acted.extras), rewards
        new = leaves(step)
        if self._like is None:
            self._start(step, new)
        is_same = list(step[2]) == list(self._like[2]) and len(new) == len(self._blocks)
        if not is_same or any(
            leaf.dtype != block.dtype or leaf.shape[1:] != block.shape[2:]
            for leaf, block in zip(new, self._blocks, strict=True)
        ):
            what = f"names, dtypes or shapes of the model outputs changed: {', '.join(step[2]) or 'none'}"
            raise BadData(what, where=OUTPUTS, fix="return the same outputs at every step")
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
            fix = "return numbers only, and remove other columns from the batch"
            raise BadData(f"the model outputs {', '.join(strange)} are not numbers", where=OUTPUTS, fix=fix)
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
        """Copy a slot's current steps from the blocks to its pieces."""
        count = int(self._t[slot]) - self._cut[slot]
        if count:
            for pieces, block in zip(self._pieces[slot], self._blocks, strict=True):
                pieces.append(block[self._filled - count : self._filled, slot].copy())
        self._cut[slot] += count


def batch_of(episodes: Sequence[RecordedEpisode], ids: Sequence[str], spaces: tuple[Space, Space]) -> EpisodeBatch:
    """The episodes as one batch. `spaces`: observation and action space."""
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
    """Count the dropped info entries by key."""
    for episode in episodes:
        for _, info in episode.infos:
            for key in info.dropped:
                tally.assume(f"{DROPPED}: {key}")


# ---- episodes of agents ----


@dataclass(frozen=True, slots=True, eq=False)
class AgentEpisodes:
    """Splits games into the episodes of a group of agents with equal spaces."""

    spaces: tuple[Space, Space]  # observation and action space of each agent
    module_of: dict[str, str]  # module id by agent, in order

    @classmethod
    def kinds(cls, agents: Mapping[str, tuple[Space, Space]], module_of: Mapping[str, str]) -> list[AgentEpisodes]:
        """Group agents by equal spaces. `agents`: spaces by agent; `module_of`: module id by agent."""
        groups: list[AgentEpisodes] = []
        for agent, spaces in agents.items():
            group = next((one for one in groups if all(map(same_space, one.spaces, spaces))), None)
            if group is None:
                group = cls(spaces, {})
                groups.append(group)
            group.module_of[agent] = module_of[agent]
        return groups

    def divided(self, games: EpisodeBatch, written: frozenset[str]) -> EpisodeBatch | None:
        """The agents' episodes, game by game, without ids in `written`; None if there are none."""
        parts = [self._of_agent(games, agent, module) for agent, module in self.module_of.items()]
        whole = EpisodeBatch.concat([part for part, _ in parts if len(part)]) if any(len(part) for part, _ in parts) else None
        if whole is None:
            return None
        game = np.concatenate([which for _, which in parts])
        index = [at for at in np.argsort(game, kind="stable").tolist() if whole.ids[at] not in written]
        return whole.select(index) if index else None

    def _of_agent(self, games: EpisodeBatch, agent: str, module: str) -> tuple[EpisodeBatch, NDArray[np.int64]]:
        """One agent's episodes, and the game index of each."""
        state: NDArray[np.float64] = games.obs[agent][STATE]
        acting, game = state[:, ACTS] > 0, np.repeat(np.arange(len(games)), games.lengths + 1)
        acts = np.bincount(game[acting], minlength=len(games))
        rows, which = np.flatnonzero((state[:, SHOWN] > 0) & (acts > 0)[game]), np.flatnonzero(acts)
        starts = np.concatenate([[0], np.cumsum(acts[which])]).astype(np.int64)
        first, last = (
            starts[:-1] + np.arange(len(which)),
            starts[1:] + np.arange(len(which)),
        )  # first and last row of each episode in `rows`
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
