"""The data of an episode and its derived properties; lengths that do not fit raise, and nothing here changes data."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Self

import gymnasium as gym
import numpy as np

from offline_cli.columns import Columns
from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space

__all__ = ["REWARD_SPACE", "EpisodeData"]

REWARD_SPACE: Space = gym.spaces.Box(-np.inf, np.inf, (), np.float32)  # RLlib's: decides the type of filled rewards only
Data = Any  # a list of steps, a tree of arrays, or an InfiniteLookbackBuffer


class EpisodeData:
    """T actions, rewards and extra model outputs between T+1 observations and infos, ids, flags and spaces."""

    __slots__ = (
        "_action_space",
        "_custom_data",
        "_infos",
        "_last_step_time",
        "_observation_space",
        "_start_time",
        "actions",
        "agent_id",
        "extra_model_outputs",
        "id_",
        "is_terminated",
        "is_truncated",
        "module_id",
        "multi_agent_episode_id",
        "observations",
        "rewards",
        "t",
        "t_started",
    )

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Data = None,
        observation_space: Space | None = None,
        infos: Data = None,
        actions: Data = None,
        action_space: Space | None = None,
        rewards: Data = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Data] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | str = "auto",
        agent_id: Any = None,
        module_id: str | None = None,
        multi_agent_episode_id: str | None = None,
    ) -> None:
        """An episode that is empty, or holds the steps given: T+1 observations and infos, T of the rest.

        Args:
            id_: Unique name; None makes one up.
            observations, actions, rewards, infos: A list of steps, a tree of arrays, or an InfiniteLookbackBuffer. Missing
                infos are empty dicts.
            extra_model_outputs: By name, each as above.
            len_lookback_buffer: How many of the first steps are lookback buffer; "auto" means all of them, 0 none.
            t_started: The timestep of the first action after the lookback buffer; None means 0.

        Raises BadEpisode where lengths disagree.
        """
        self.id_ = str(id_ or uuid.uuid4().hex)
        self.agent_id, self.module_id, self.multi_agent_episode_id = agent_id, module_id, multi_agent_episode_id
        lookback = self._lookback(len_lookback_buffer, _size(rewards))
        self.observations = _buffer(observations, lookback, observation_space)
        self.actions = _buffer(actions, lookback, action_space)
        self.rewards = _buffer(rewards, lookback, REWARD_SPACE)
        self._infos: InfiniteLookbackBuffer | None = None if infos is None else _buffer(infos, lookback, None)
        self.extra_model_outputs = {name: _buffer(data, lookback, None) for name, data in (extra_model_outputs or {}).items()}
        self._observation_space, self._action_space = self.observations.space, self.actions.space
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self.t_started = int(t_started or 0)
        self.t = len(self.rewards) + self.t_started
        self._custom_data: dict[str, Any] = {}
        self._start_time: float | None = None
        self._last_step_time: float | None = None
        self.validate()

    def _lookback(self, asked: int | str, steps: int) -> int:
        if asked == "auto":
            return steps
        if not isinstance(asked, (int, np.integer)) or asked < 0:
            raise BadEpisode(f"len_lookback_buffer={asked!r}", where=f"episode {self.id_}", fix='"auto", or a number from 0 on')
        return min(int(asked), steps)

    @classmethod
    def assemble(
        cls,
        *,
        id_: str,
        observations: InfiniteLookbackBuffer,
        actions: InfiniteLookbackBuffer,
        rewards: InfiniteLookbackBuffer,
        infos: InfiniteLookbackBuffer | None,
        extra_model_outputs: dict[str, InfiniteLookbackBuffer],
        observation_space: Space | None,
        action_space: Space | None,
        terminated: bool,
        truncated: bool,
        t_started: int,
        t: int,
        agent_id: Any = None,
        module_id: str | None = None,
        multi_agent_episode_id: Any = None,
        start_time: float | None = None,
        last_step_time: float | None = None,
        custom_data: dict[str, Any] | None = None,
    ) -> Self:
        """An episode over buffers that are known to fit each other, unchecked; `infos` None: every info is empty."""
        self = cls.__new__(cls)
        self.id_, self.t_started, self.t = id_, t_started, t
        self.agent_id, self.module_id, self.multi_agent_episode_id = agent_id, module_id, multi_agent_episode_id
        self.observations, self.actions, self.rewards, self._infos = observations, actions, rewards, infos
        self.extra_model_outputs = extra_model_outputs
        self._observation_space, self._action_space = observation_space, action_space
        self.is_terminated, self.is_truncated = terminated, truncated
        self._start_time, self._last_step_time = start_time, last_step_time
        self._custom_data = {} if custom_data is None else custom_data
        return self

    # ---- what it is ----

    def __len__(self) -> int:
        """T: the steps taken, without the lookback buffer."""
        return self.t - self.t_started

    def env_steps(self) -> int:
        """T: steps of the environment."""
        return len(self)

    def agent_steps(self) -> int:
        """T: steps of the agent; the same for a single agent."""
        return len(self)

    @property
    def is_reset(self) -> bool:
        """Whether there is a first observation."""
        return len(self.observations) > 0

    @property
    def is_numpy(self) -> bool:
        """Whether the steps are arrays."""
        return self.rewards.finalized

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended, terminated or truncated."""
        return self.is_terminated or self.is_truncated

    @property
    def infos(self) -> InfiniteLookbackBuffer:
        """The info dicts, one per observation; made on demand where all are empty."""
        if self._infos is None:
            empty: list[dict[str, Any]] = [{} for _ in range(self.observations.len_incl_lookback())]
            self._infos = InfiniteLookbackBuffer.over(empty, self.observations.lookback, None, finalized=False)
        return self._infos

    @property
    def has_infos(self) -> bool:
        """Whether any info is not empty, lookback buffer included."""
        return self._infos is not None and any(self._infos.data)

    @property
    def custom_data(self) -> dict[str, Any]:
        """Data of the episode as a whole, of no single kind; kept by `cut` (as a copy) and in states."""
        return self._custom_data

    @property
    def observation_space(self) -> Space | None:
        """The space of one observation; setting it sets the buffer's too."""
        return self._observation_space

    @observation_space.setter
    def observation_space(self, space: Space | None) -> None:
        self._observation_space = self.observations.space = space

    @property
    def action_space(self) -> Space | None:
        """The space of one action; setting it sets the buffer's too."""
        return self._action_space

    @action_space.setter
    def action_space(self, space: Space | None) -> None:
        self._action_space = self.actions.space = space

    def get_return(self) -> float:
        """The undiscounted sum of rewards, in the environment's units, lookback buffer and earlier chunks left out."""
        rewards = self.rewards.get()
        return float(rewards.sum() if self.is_numpy else sum(rewards))

    def get_duration_s(self) -> float:
        """Seconds from the first to the last addition to this chunk; 0 before the first step."""
        if self._last_step_time is None or self._start_time is None:
            return 0.0
        return self._last_step_time - self._start_time

    def get_data_dict(self) -> dict[str, Any]:
        """Columns of T rows by RLlib's names: flags, t, eps_id, obs, infos, actions, rewards and each extra model output.

        Arrays if numpy'ized (infos stay a list), lists if not.
        """
        steps = len(self)
        before = [False] * max(steps - 1, 0)
        flags = {
            Columns.TERMINATEDS: [*before, self.is_terminated][:steps],
            Columns.TRUNCATEDS: [*before, self.is_truncated][:steps],
            Columns.T: list(range(self.t_started, self.t)),
            Columns.EPS_ID: [self.id_] * steps,
        }
        return {
            **({name: np.array(column) for name, column in flags.items()} if self.is_numpy else flags),
            Columns.OBS: self.observations.get(slice(0, steps)),
            Columns.INFOS: self.infos.get(slice(0, steps)),
            Columns.ACTIONS: self.actions.get(),
            Columns.REWARDS: self.rewards.get(),
            **{name: buffer.get() for name, buffer in self.extra_model_outputs.items()},
        }

    def validate(self) -> None:
        """Raise BadEpisode, with names and lengths, unless there are T actions, T rewards, T+1 observations and infos, ..."""
        seen = len(self.observations)
        steps = max(seen - 1, 0)
        if (
            len(self.actions) == len(self.rewards) == self.t - self.t_started == steps
            and (self._infos is None or len(self._infos) == seen)
            and all(len(buffer) == steps for buffer in self.extra_model_outputs.values())
        ):
            return
        fix = "give T+1 observations and infos, T of the rest, all with one lookback buffer"
        raise self._bad(f"{seen} observations, {', '.join(self._wrong_lengths(seen, steps))}", fix=fix)

    def _wrong_lengths(self, seen: int, steps: int) -> list[str]:
        lengths = {
            "actions": (len(self.actions), steps),
            "rewards": (len(self.rewards), steps),
            "steps between t_started and t": (self.t - self.t_started, steps),
            "infos": (len(self.infos), seen),
        }
        for name, buffer in self.extra_model_outputs.items():
            lengths[f"extra model output {name}"] = (len(buffer), steps)
        return [f"{have} {name} ({want} wanted)" for name, (have, want) in lengths.items() if have != want]

    def _bad(self, what: str, *, fix: str) -> BadEpisode:
        return BadEpisode(what, where=f"episode {self.id_}", fix=fix)

    def __repr__(self) -> str:
        state = "done" if self.is_done else "going on"
        return f"SingleAgentEpisode({self.id_}: {len(self)} steps from {self.t_started}, {state}, return {self.get_return():g})"


def _size(data: Data) -> int:
    return 0 if data is None else len(data)


def _buffer(data: Data, lookback: int, space: Space | None) -> InfiniteLookbackBuffer:
    if not isinstance(data, InfiniteLookbackBuffer):
        return InfiniteLookbackBuffer(data, lookback, space)
    if data.space is None:
        data.space = space
    return data
