"""SingleAgentEpisode: one agent's trajectory in one environment, or a chunk of it.

API and semantics follow RLlib's documentation of Episodes. Kept, though surprising: data given to the constructor is lookback
buffer unless `len_lookback_buffer` says otherwise; `cut` keeps the id; infos stay a list when numpy'ized. Different: rewards
become float64; steps of several dtypes are widened to one; errors are BadEpisode with names and lengths, raised before anything
is modified; lists of steps are copied, and shared arrays are copied before the first write; chunks and slices keep agent and
module. `get_sample_batch`, part of RLlib's old API stack, is missing.

`InfiniteLookbackBuffer.get` and `.set` document the options that all getters and setters share.
"""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Callable, Mapping
from operator import index as whole_number
from types import MappingProxyType
from typing import Any, Final, Self, Unpack

import gymnasium as gym
import numpy as np

from offline_cli.episodes.episode_spaces import OWN_SPACES, known_space_to_rllib, space_in_state
from offline_cli.episodes.lookback_buffer import GetterOptions, Indices, InfiniteLookbackBuffer, SetterOptions, check_item
from offline_cli.errors import PROBLEM, BadEpisode, EpisodeKeyError, OfflineCliError
from offline_cli.spaces import Space
from offline_cli.trees import Tree, leaves, map_leaves, same_leaf

__all__ = ["REWARD_SPACE", "SingleAgentEpisode", "check_cut", "state_error"]

REWARD_SPACE: Space = gym.spaces.Box(-np.inf, np.inf, (), np.float32)  # as in RLlib; only sets the dtype of filled rewards
NAMES: Final = ("agent_id", "module_id", "multi_agent_episode_id")
LAST_TIMESTEP: Final = 1 << 53
NO_OUTPUTS: Final[Mapping[str, Any]] = MappingProxyType({})
Data = Any  # a list of steps, a tree of arrays, or an InfiniteLookbackBuffer
Bounds = slice  # the class has a method of that name


def _one_step(kind: str) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Getter and setter of one timestep, under RLlib's older names."""

    def get(self: Any, index: int, **options: Any) -> Any:
        return getattr(self, f"get_{kind}")(index, **options)

    def set_(self: Any, *, new_value: Any, at_index: int, **options: Any) -> None:
        getattr(self, f"set_{kind}")(new_data=new_value, at_indices=at_index, **options)

    return get, set_


class SingleAgentEpisode:
    """T+1 observations and infos, T actions, rewards and values of each extra model output, plus lookback buffers.

    `t_started` is the timestep of the first action within the whole episode (0 except for chunks), `t` that of the next one.
    """

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
        """Create an empty episode, or one with the given steps: T+1 observations and infos, T of the rest.

        Args:
            id_: Unique name; None generates one.
            observations, actions, rewards, infos: A list of steps, a tree of arrays, or an InfiniteLookbackBuffer. Missing
                infos are empty dicts.
            extra_model_outputs: By name, each as above.
            len_lookback_buffer: The number of first steps that are lookback buffer; "auto" means all, 0 none.
            t_started: The timestep of the first action after the lookback buffer; None means 0.

        Raises BadEpisode if lengths disagree.
        """
        self.id_ = str(id_ or uuid.uuid4().hex)
        steps = 0 if rewards is None else len(rewards)
        asked = steps if len_lookback_buffer == "auto" else len_lookback_buffer
        if not isinstance(asked, (int, np.integer)) or asked < 0:
            raise self._bad(f"len_lookback_buffer={asked!r}", fix='give "auto" or a number >= 0')
        lookback = min(int(asked), steps)
        self.agent_id, self.module_id, self.multi_agent_episode_id = agent_id, module_id, multi_agent_episode_id
        self.observations = _buffer(observations, lookback, observation_space)
        self.actions = _buffer(actions, lookback, action_space)
        self.rewards = _buffer(rewards, lookback, REWARD_SPACE)
        self.infos = _buffer(_no_infos(self.observations) if infos is None else infos, lookback, None)
        self.extra_model_outputs = {name: _buffer(data, lookback, None) for name, data in (extra_model_outputs or {}).items()}
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self.t_started = int(t_started or 0)
        self.t = len(self.rewards) + self.t_started
        self.custom_data: dict[str, Any] = {}  # of the whole episode; copied by `cut`, and stored in states
        self._start_time: float | None = None
        self._last_step_time: float | None = None
        self.validate()

    @classmethod
    def assemble(cls, **attributes: Any) -> Self:
        """Create an episode from consistent buffers without validation; takes a value for every attribute."""
        self = cls.__new__(cls)
        self.__dict__ |= attributes
        return self

    # ---- properties ----

    def __len__(self) -> int:
        """T: the number of steps, without the lookback buffer."""
        return self.t - self.t_started

    def env_steps(self) -> int:
        """T: environment steps."""
        return len(self)

    def agent_steps(self) -> int:
        """T: agent steps, equal to environment steps for a single agent."""
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
    def has_infos(self) -> bool:
        """Whether any info is non-empty, lookback buffer included."""
        return any(self.infos.data)

    @property
    def observation_space(self) -> Space | None:
        """The space of one observation; None: unknown."""
        return self.observations.space

    @observation_space.setter
    def observation_space(self, space: Space | None) -> None:
        self.observations.space = space

    @property
    def action_space(self) -> Space | None:
        """The space of one action; None: unknown."""
        return self.actions.space

    @action_space.setter
    def action_space(self, space: Space | None) -> None:
        self.actions.space = space

    def get_return(self) -> float:
        """The undiscounted sum of rewards, in the environment's units, without lookback buffer and earlier chunks."""
        rewards = self.rewards.get()
        return float(rewards.sum() if self.is_numpy else sum(rewards))

    def validate(self) -> None:
        """Raise BadEpisode, with names and lengths, unless there are T+1 observations and infos, and T of the rest."""
        for name in ("observations", "actions", "rewards", "infos"):
            if not isinstance(held := getattr(self, name), InfiniteLookbackBuffer):
                what, fix = f"{name} were replaced by a value of type {type(held).__name__}", f"use set_{name}(new_data=...)"
                raise self._bad(what, fix=fix)
        seen = len(self.observations)
        steps = max(seen - 1, 0)
        extra = {f"extra model output {name}": len(buffer) for name, buffer in self.extra_model_outputs.items()}
        lengths = {"actions": len(self.actions), "rewards": len(self.rewards), **extra}
        lengths["steps between t_started and t"] = self.t - self.t_started
        wrong = [f"{have} {name} (expected {steps})" for name, have in lengths.items() if have != steps]
        wrong += [f"{len(self.infos)} infos (expected {seen})"] if len(self.infos) != seen else []
        if not wrong:
            return
        fix = "give T+1 observations and infos, T of the rest, all with the same lookback length"
        error = self._bad(f"{seen} observations, {', '.join(wrong)}", fix=fix)
        error.details[PROBLEM] = "length-mismatch"
        raise error

    def __repr__(self) -> str:
        state = "done" if self.is_done else "running"
        return f"SingleAgentEpisode({self.id_}: {len(self)} steps from {self.t_started}, {state}, return {self.get_return():g})"

    # ---- filling ----

    def add_env_reset(self, observation: Any, infos: Mapping[str, Any] | None = None) -> None:
        """Add the result of `env.reset()`. Raises BadEpisode unless the episode is empty and at timestep 0."""
        if self.is_reset or self.is_done or self.t or self.t_started:
            what = f"add_env_reset at timestep {self.t} of an episode with {len(self.observations)} observations"
            raise self._bad(what, fix="create a new SingleAgentEpisode for each env.reset()")
        self.infos.append(infos or {})
        self.observations.append(observation)
        self._start_time = time.perf_counter()

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        infos: Mapping[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an action, the result of `env.step(action)`, and the module's outputs for the action.

        Raises BadEpisode, leaving the episode unchanged, if it is done or not yet reset, if the names of the extra model
        outputs differ from the earlier steps, or if a numpy'ized episode's spaces do not contain the step.
        """
        extra = extra_model_outputs or NO_OUTPUTS
        self.check_step(observation, action, extra)
        for name in extra.keys() - self.extra_model_outputs.keys():
            self.extra_model_outputs[name] = InfiniteLookbackBuffer()
        added = [(self.observations, observation), (self.actions, action), (self.rewards, reward)]
        if extra:
            added += [(self.extra_model_outputs[name], value) for name, value in extra.items()]
        arrays = [buffer.appended(item) if buffer.finalized else None for buffer, item in added]
        self.infos.append(infos or {})
        for (buffer, item), grown in zip(added, arrays, strict=True):
            if buffer.finalized:
                buffer.replace(grown)
            else:
                buffer.data.append(item)
        self.t += 1
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self._last_step_time = time.perf_counter()
        if self._start_time is None:
            self._start_time = self._last_step_time

    def check_step(self, observation: Any, action: Any, extra: Mapping[str, Any]) -> None:
        """Raise BadEpisode unless this step may follow: extra model output names, and once numpy'ized spaces."""
        if self.is_done:
            raise self._bad("a step after the end of the episode", fix="create a new SingleAgentEpisode")
        if not self.is_reset:
            raise self._bad("a step before the reset", fix="call add_env_reset first")
        known = self.extra_model_outputs.keys()
        if extra.keys() != known and (len(self) or not extra.keys() >= known):
            what = f"extra model outputs are {sorted(extra)} at timestep {self.t}, but {sorted(known)} before"
            raise self._bad(what, fix="give the same outputs at every step")
        if self.is_numpy:
            where = f"episode {self.id_}, %s of timestep %s"
            check_item(observation, self.observation_space, where=where % ("observation", self.t + 1))
            check_item(action, self.action_space, where=where % ("action", self.t))

    def to_numpy(self) -> Self:
        """Convert the lists of steps to arrays, in place: leaves (T+1, *obs_shape), (T, *action_shape), rewards (T,) float64.

        Infos stay a list. Before the first step only the observations are converted, and `is_numpy` stays False.

        Raises BadEpisode, naming the data, leaf and step, if steps differ in structure or shape.
        """
        self.validate()
        buffers = {"observations": self.observations}
        if len(self) > 0:
            buffers |= {"actions": self.actions, "rewards": self.rewards}
            buffers |= {f"extra model output {name}": buffer for name, buffer in self.extra_model_outputs.items()}
        for name, buffer in buffers.items():
            self._placed(name, buffer.finalize, np.float64 if buffer is self.rewards else None)
        return self

    # ---- getters: one record for an int; several for a list, slice or None (all): a list, or leaves (K, *shape) ----

    def get_observations(self, indices: Indices = None, **options: Unpack[GetterOptions]) -> Any:
        """Observations, T+1 in all. Without `fill`, raises EpisodeIndexError outside the episode and its lookback buffer."""
        return self._placed("observations", self.observations.get, indices, **options)

    def get_actions(self, indices: Indices = None, **options: Unpack[GetterOptions]) -> Any:
        """Actions, T in all; otherwise as `get_observations`."""
        return self._placed("actions", self.actions.get, indices, **options)

    def get_rewards(self, indices: Indices = None, **options: Unpack[GetterOptions]) -> Any:
        """Rewards, T in all, float64 once numpy'ized; otherwise as `get_observations`."""
        return self._placed("rewards", self.rewards.get, indices, **options)

    def get_infos(self, indices: Indices = None, **options: Unpack[GetterOptions]) -> Any:
        """Info dicts, T+1 in all, in a list, numpy'ized or not; otherwise as `get_observations`."""
        return self._placed("infos", self.infos.get, indices, **options)

    def get_extra_model_outputs(self, key: str, indices: Indices = None, **options: Unpack[GetterOptions]) -> Any:
        """Outputs named `key`, T in all; otherwise as `get_observations`. Raises EpisodeKeyError for an unknown `key`."""
        return self._placed(f"extra model output {key}", self._extra(key).get, indices, **options)

    # ---- setters: overwrite one record (int), several (list, slice) or all after the lookback buffer (None). They take
    # `new_data`, `at_indices` and `neg_index_as_lookback`: see `InfiniteLookbackBuffer.set` ----

    def set_observations(self, **options: Unpack[SetterOptions]) -> None:
        """Raises EpisodeIndexError for a wrong number of values, BadEpisode for a wrong structure, shape or space."""
        self._placed("observations", self.observations.set, **options)

    def set_actions(self, **options: Unpack[SetterOptions]) -> None:
        """Raises as `set_observations`."""
        self._placed("actions", self.actions.set, **options)

    def set_rewards(self, **options: Unpack[SetterOptions]) -> None:
        """Raises as `set_observations`."""
        self._placed("rewards", self.rewards.set, **options)

    def set_infos(self, **options: Unpack[SetterOptions]) -> None:
        """Raises as `set_observations`."""
        self._placed("infos", self.infos.set, **options)

    def set_extra_model_outputs(self, *, key: str, **options: Unpack[SetterOptions]) -> None:
        """Raises as `set_observations`, and EpisodeKeyError for an unknown `key`."""
        self._placed(f"extra model output {key}", self._extra(key).set, **options)

    # ---- RLlib's older names, for one timestep; options as above ----

    get_observation, set_observation = _one_step("observations")
    get_action, set_action = _one_step("actions")
    get_reward, set_reward = _one_step("rewards")
    get_info, set_info = _one_step("infos")
    set_extra_model_output = _one_step("extra_model_outputs")[1]

    def get_extra_model_output(self, key: str, index: int, **options: Unpack[GetterOptions]) -> Any:
        """`get_extra_model_outputs` of one timestep."""
        return self.get_extra_model_outputs(key, index, **options)

    def _placed(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a buffer's method; errors get the episode and the kind of data in their `where`."""
        try:
            return call(*args, **options)
        except BadEpisode as err:
            err.where = f"episode {self.id_}, {name}, {err.where}"
            raise

    def _extra(self, key: str) -> InfiniteLookbackBuffer:
        if key in self.extra_model_outputs:
            return self.extra_model_outputs[key]
        known = ", ".join(map(str, self.extra_model_outputs)) or "there are none"
        raise EpisodeKeyError(f"no extra model output {key!r}", where=f"episode {self.id_}", fix=f"use one of: {known}")

    # ---- chunks and slices: arrays are shared until one side is written ----

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """Start the next chunk of this episode: same id, length 0, `t_started` where this one ends.

        It starts with the last observation; its lookback buffer holds up to `len_lookback_buffer` of this chunk's steps. Custom
        data is copied.

        Raises BadEpisode if the episode is done, and for a negative length.
        """
        check_cut(self, len_lookback_buffer)
        return self.chunk(len(self), len(self), len_lookback_buffer)

    def chunk(self, start: int, stop: int, lookback: int) -> Self:
        """The steps `start` to `stop` (negative: in the lookback buffer) as a chunk like that of `cut`, without end flags."""
        chunk = self._piece(start, stop, lookback)
        chunk.rewards.space = REWARD_SPACE
        chunk.custom_data.update(copy.deepcopy(self.custom_data))
        return chunk

    def slice(self, slice_: Bounds, *, len_lookback_buffer: int | None = None) -> Self:
        """The steps `slice_.start` to `slice_.stop` as an episode: their actions, and one more observation.

        Bounds count from timestep 0 or from the end, and are clipped as in Python. The steps before the slice become its
        lookback buffer: as many as in this episode, or up to `len_lookback_buffer`. End flags are kept if the slice reaches the
        end. Custom data is not copied: there may be many slices.

        Raises BadEpisode for a step other than 1 (a trajectory may have no gaps) and for a negative length.
        """
        if slice_.step not in (None, 1) or (len_lookback_buffer is not None and len_lookback_buffer < 0):
            what = f"a slice with a step of {slice_.step} and a lookback of {len_lookback_buffer}"
            raise self._bad(what, fix="slice with a step of 1 and a lookback of 0 or more")
        start, stop, _ = slice_.indices(len(self))
        stop = max(start, stop)
        piece = self._piece(start, stop, len_lookback_buffer)
        if stop == len(self):
            piece.is_terminated, piece.is_truncated = self.is_terminated, self.is_truncated
        return piece

    def __getitem__(self, item: Bounds) -> Self:
        """`episode[2:5]`: as `slice`."""
        if not isinstance(item, Bounds):
            raise self._bad(f"episode[{item!r}]", fix="use episode[a:b] for a slice, get_observations(i) etc. for a step")
        return self.slice(item)

    def _piece(self, start: int, stop: int, lookback: int | None) -> Self:
        """The steps `start` to `stop`, counted from timestep 0 of the chunk, without end flags and custom data."""

        def part(buffer: InfiniteLookbackBuffer, more: int = 0) -> InfiniteLookbackBuffer:
            first = buffer.lookback + start
            kept = min(buffer.lookback if lookback is None else lookback, first)
            return buffer.part(first - kept, buffer.lookback + stop + more, kept, space=buffer.space)

        piece = copy.copy(self)
        piece.observations, piece.infos = part(self.observations, 1), part(self.infos, 1)
        piece.actions, piece.rewards = part(self.actions), part(self.rewards)
        piece.extra_model_outputs = {name: part(buffer) for name, buffer in self.extra_model_outputs.items()}
        piece.is_terminated = piece.is_truncated = False
        piece.t_started, piece.t = self.t_started + start, self.t_started + stop
        piece._start_time = piece._last_step_time = None
        piece.custom_data = {}
        piece.rewards.space = None  # as in RLlib; with it, filled rewards would be float32
        return piece

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Append the next chunk of this episode, without its lookback buffer; `other` is unchanged.

        Raises BadEpisode, leaving the episode unchanged, unless ids agree, this chunk is not done, `other` starts at the
        timestep and with the observation at which this one ends, and both have the same extra model outputs.
        """
        self._check_continues(other)
        seen = [(self.observations, other.observations), (self.infos, other.infos)]
        acted = [(self.actions, other.actions), (self.rewards, other.rewards)]
        acted += [(buffer, other.extra_model_outputs[name]) for name, buffer in self.extra_model_outputs.items()]
        # Both contain the shared observation; the other chunk's is kept. Everything is joined before anything is modified.
        data = [mine.joined(theirs, drop=int(number < len(seen))) for number, (mine, theirs) in enumerate([*seen, *acted])]
        for (mine, _), joined in zip([*seen, *acted], data, strict=True):
            mine.replace(joined)
        self.t = other.t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._last_step_time = other._last_step_time or self._last_step_time
        self.custom_data.update(other.custom_data)

    def _check_continues(self, other: SingleAgentEpisode) -> None:
        self.validate()
        other.validate()
        names = [sorted(chunk.extra_model_outputs) for chunk in (other, self)]
        problem = ""
        if other.id_ != self.id_:
            problem = f"a chunk of episode {other.id_}"
        elif self.is_done:
            problem = "a chunk after the end of the episode"
        elif self.t != other.t_started:
            problem = f"the chunk starts at timestep {other.t_started}, but this one ends at {self.t}"
        elif names[0] != names[1]:
            problem = f"the chunk has extra model outputs {names[0]}, this one has {names[1]}"
        elif not self.is_reset or not other.is_reset:
            problem = "a chunk without a first observation"
        elif not _same(self.get_observations(-1), other.get_observations(0)):
            problem = f"the chunk's first observation differs from the last one here, at timestep {self.t}"
        if problem:
            raise self._bad(problem, fix="join the chunks of one episode in order, with no gaps")

    # ---- states ----

    def get_state(self) -> dict[str, Any]:
        """The state in the layout of RLlib 2.60, which RLlib's `from_state` accepts. Arrays are not copied."""
        extra = {name: buffer.get_state() for name, buffer in self.extra_model_outputs.items()}
        return {
            "id_": self.id_,
            **{name: getattr(self, name) for name in NAMES},
            **{name: getattr(self, name).get_state() for name in ("observations", "actions", "rewards", "infos")},
            "extra_model_outputs": extra or None,
            **{name: getattr(self, name) for name in ("is_terminated", "is_truncated", "t_started", "t")},
            "_observation_space": known_space_to_rllib(self.observation_space),
            "_action_space": known_space_to_rllib(self.action_space),
            **{name: getattr(self, name) for name in ("_start_time", "_last_step_time")},
            "custom_data": self.custom_data,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Restore an episode from a state of RLlib 2.40 to 2.60 or of `get_state`; it shares the state's arrays.

        The state may be numpy'ized or not, have numpy bools as flags, and `custom_data`, the older `_temporary_timestep_data`,
        or neither. Raises BadEpisode for an invalid state or lengths that disagree.
        """
        where = f"state of episode {state.get('id_', '(no id)')}" if isinstance(state, Mapping) else "an episode's state"
        try:
            episode = cls._of_state(state, where)
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise state_error(err, "an episode", where, "RLlib 2.40 to 2.60") from err
        episode.validate()
        return episode

    @classmethod
    def _of_state(cls, state: Mapping[str, Any], where: str) -> Self:
        def buffer(name: str, held: Any, space: Space | None = None) -> InfiniteLookbackBuffer:
            try:
                return InfiniteLookbackBuffer.from_state(held, space)
            except OfflineCliError as err:
                err.where = f"{where}, {name}, {err.where}"
                raise

        own = {name: space_in_state(state, name, where=where) for name in OWN_SPACES}
        infos, rewards = buffer("infos", state["infos"]), buffer("rewards", state["rewards"])
        if infos.finalized or not all(info is None or isinstance(info, dict) for info in infos.data):
            raise TypeError("infos are not a list of dicts")
        infos.data = [info or {} for info in infos.data]  # some writers use None for empty infos
        if not _one_number_each(rewards):
            raise TypeError("rewards are not one number per step")
        t_started, t = whole_number(state["t_started"]), whole_number(state["t"])
        if not 0 <= t_started <= t <= LAST_TIMESTEP:
            raise ValueError(f"timesteps from {t_started} to {t}")
        extra = state.get("extra_model_outputs") or {}
        if not all(isinstance(name, str) for name in extra):
            raise TypeError("a name of an extra model output is not a string")
        return cls.assemble(
            id_=str(state["id_"]),
            observations=buffer("observations", state["observations"], own["observations"]),
            actions=buffer("actions", state["actions"], own["actions"]),
            rewards=rewards,
            infos=infos,
            extra_model_outputs={name: buffer(name, part) for name, part in extra.items()},
            is_terminated=_flag(state["is_terminated"]),
            is_truncated=_flag(state["is_truncated"]),
            t_started=t_started,
            t=t,
            custom_data=dict(state.get("custom_data") or state.get("_temporary_timestep_data") or {}),
            _start_time=_seconds(state.get("_start_time")),
            _last_step_time=_seconds(state.get("_last_step_time")),
            **{name: state.get(name) for name in NAMES},
        )

    # ---- errors ----

    def _bad(self, what: str, *, fix: str) -> BadEpisode:
        return BadEpisode(what, where=f"episode {self.id_}", fix=fix)


def check_cut(episode: Any, lookback: int) -> None:
    """Raise BadEpisode unless `episode` (single or multi-agent) can be cut with this lookback."""
    if episode.is_done or lookback < 0:
        what = "cut of a done episode" if episode.is_done else f"a lookback of {lookback}"
        raise episode._bad(what, fix="cut only episodes that are not done, with a lookback >= 0")


def state_error(err: Exception, kind: str, where: str, writers: str) -> BadEpisode:
    """The error for a malformed state of `kind`."""
    what = f"key {err} is missing" if isinstance(err, KeyError) else str(err)
    return BadEpisode(f"not the state of {kind}: {what}", where=where, fix=f"write it with {writers}, or with get_state")


def _buffer(data: Data, lookback: int, space: Space | None) -> InfiniteLookbackBuffer:
    if not isinstance(data, InfiniteLookbackBuffer):
        return InfiniteLookbackBuffer(data, lookback, space)
    if data.space is None:
        data.space = space
    return data


def _no_infos(observations: InfiniteLookbackBuffer) -> list[dict[str, Any]]:
    return [{} for _ in range(observations.len_incl_lookback())]


def _one_number_each(rewards: InfiniteLookbackBuffer) -> bool:
    if rewards.finalized:
        return isinstance(rewards.data, np.ndarray) and rewards.data.ndim == 1 and rewards.data.dtype.kind in "biuf"
    values = [value for value in rewards.data if not isinstance(value, (bool, int, float))]
    return all(
        isinstance(value, (np.ndarray, np.generic)) and value.size == 1 and value.dtype.kind in "biuf" for value in values
    )


def _flag(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{value!r:.40} instead of true or false")
    return bool(value)


def _seconds(value: Any) -> float | None:
    return None if value is None or np.isnan(value) else float(value)


def _same(left: Tree, right: Tree) -> bool:
    try:
        return all(leaves(map_leaves(same_leaf, left, right)))
    except ValueError:  # other structures
        return False
