"""SingleAgentEpisode: one agent's way through one environment, or a chunk of it; data of lengths that do not fit raises.

The API and meaning are those that RLlib documents on its Episodes page. What is kept although it may surprise: data given to
the constructor is lookback buffer unless `len_lookback_buffer` says otherwise; `cut` keeps the id; infos stay a list when
numpy'ized. What differs: rewards become float64; steps of several dtypes become one that holds them all; errors are BadEpisode
with names and lengths, raised before anything is changed; lists of steps are copied, and arrays that somebody else may hold are
copied before the first write; pieces keep agent and module. `get_sample_batch` belongs to RLlib's old API stack and is not
here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np

from offline_cli.episodes import pieces
from offline_cli.episodes.accessors import EpisodeAccessors
from offline_cli.episodes.buffers.indexing import check_item
from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.errors import BadEpisode
from offline_cli.trees import Tree

__all__ = ["SingleAgentEpisode"]

Part = slice  # the class has a method of that name
Grown = tuple[InfiniteLookbackBuffer, Tree]  # a numpy'ized buffer, and its arrays with one more record
NO_OUTPUTS: Final[Mapping[str, Any]] = MappingProxyType({})


class SingleAgentEpisode(EpisodeAccessors):
    """T actions, T rewards and T of each extra model output between T+1 observations and T+1 infos, plus lookback buffers.

    `t_started` is the timestep of the first action within the whole episode (0 but for chunks), `t` that of the next one.
    """

    __slots__ = ()

    # ---- filling ----

    def add_env_reset(self, observation: Any, infos: Mapping[str, Any] | None = None) -> None:
        """Add what `env.reset()` returned. Raises BadEpisode unless the episode is empty and at timestep 0."""
        if self.is_reset or self.is_done or self.t or self.t_started:
            what = f"a reset at timestep {self.t} of an episode with {len(self.observations)} observations"
            raise self._bad(what, fix="begin a new SingleAgentEpisode for each env.reset()")
        if infos or self._infos is not None:
            self.infos.append(infos or {})  # before the observation: both have one length
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
        """Add an action, what `env.step(action)` returned, and the module's outputs with the action.

        Raises BadEpisode, leaving the episode as it was, when it is done or not yet reset, when the names of the extra model
        outputs are not those of the steps before, and when a numpy'ized episode's spaces do not contain the step.
        """
        extra = extra_model_outputs or NO_OUTPUTS
        grown = self._checked_step(observation, action, reward, extra)
        self._commit_step(observation, action, reward, infos, terminated, truncated, extra, grown)

    def check_step(self, observation: Any, action: Any, reward: Any, extra: Mapping[str, Any]) -> None:
        """Raise what `add_env_step` would raise; for callers that add steps to several episodes, to all of them or to none."""
        self._checked_step(observation, action, reward, extra)

    def _checked_step(self, observation: Any, action: Any, reward: Any, extra: Mapping[str, Any]) -> Sequence[Grown]:
        """The arrays of numpy'ized buffers with this step; raises before anything is added.

        Environments add every step through here and `_commit_step`: each call and each object less counts.
        """
        if self.is_terminated or self.is_truncated:
            raise self._bad("a step after the episode was done", fix="begin a new SingleAgentEpisode")
        seen, held = self.observations, self.extra_model_outputs
        if not (len(seen) if seen.finalized else len(seen.data) > seen.lookback):
            raise self._bad("a step before the reset", fix="call add_env_reset first")
        if extra or held:
            self.check_outputs(extra)
        if seen.finalized or self.rewards.finalized or self.actions.finalized or (held and _any_arrays(held)):
            return self._grown(observation, action, reward, extra)
        return ()

    def _grown(self, observation: Any, action: Any, reward: Any, extra: Mapping[str, Any]) -> list[Grown]:
        if self.is_numpy:
            check_item(observation, self._observation_space, where=f"episode {self.id_}, observation of timestep {self.t + 1}")
            check_item(action, self._action_space, where=f"episode {self.id_}, action of timestep {self.t}")
        held = self.extra_model_outputs
        added = [(self.observations, observation), (self.actions, action), (self.rewards, reward)]
        added += [(held[name], value) for name, value in extra.items() if name in held]
        return [(buffer, buffer.appended(item)) for buffer, item in added if buffer.finalized]

    def _commit_step(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        infos: Mapping[str, Any] | None,
        terminated: bool,
        truncated: bool,
        extra: Mapping[str, Any],
        grown: Sequence[Grown],
    ) -> None:
        kept = self._infos
        if infos or kept is not None:
            (self.infos if kept is None else kept).append(infos or {})  # before the observation: both had one length
        if not grown:
            self.observations.data.append(observation)
            self.actions.data.append(action)
            self.rewards.data.append(reward)
        else:
            self._add_grown(((self.observations, observation), (self.actions, action), (self.rewards, reward)), grown)
        if extra:
            held = self.extra_model_outputs
            for name, value in extra.items():
                if name not in held:
                    held[name] = InfiniteLookbackBuffer([value])
                elif not held[name].finalized:
                    held[name].data.append(value)
        self.t += 1
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self._last_step_time = now = time.perf_counter()
        if self._start_time is None:
            self._start_time = now

    @staticmethod
    def _add_grown(added: Sequence[tuple[InfiniteLookbackBuffer, Any]], grown: Sequence[Grown]) -> None:
        for buffer, item in added:
            if not buffer.finalized:
                buffer.data.append(item)
        for buffer, arrays in grown:  # those of extra outputs, too
            buffer.replace(arrays)

    def check_outputs(self, extra: Mapping[str, Any]) -> None:
        """Raise BadEpisode unless the extra model outputs of a step have the names of those of the steps before."""
        known = self.extra_model_outputs.keys()
        if extra.keys() != known and (len(self) or not extra.keys() >= known):
            what = f"extra model outputs {sorted(extra)} at timestep {self.t}, {sorted(known)} before"
            raise self._bad(what, fix="give the same ones at every step")

    def to_numpy(self) -> Self:
        """Turn the lists of steps into arrays, in place: leaves (T+1, *obs_shape), (T, *action_shape), rewards (T,) float64.

        Infos stay a list. Before the first step only the observations are turned, and `is_numpy` stays False.

        Raises BadEpisode, naming the data, leaf and step, where steps differ in structure or shape.
        """
        self.validate()
        self._finalize("observations", self.observations)
        if len(self) > 0:
            self._finalize("actions", self.actions)
            self._finalize("rewards", self.rewards, np.float64)
            for name, buffer in self.extra_model_outputs.items():
                self._finalize(f"extra model output {name}", buffer)
        return self

    def _finalize(self, name: str, buffer: InfiniteLookbackBuffer, dtype: Any = None) -> None:
        try:
            buffer.finalize(dtype)
        except BadEpisode as err:
            self._locate(err, name)
            raise

    # ---- pieces ----

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """The chunk in which this episode continues: same id, length 0, `t_started` where this one ends.

        It begins with the last observation and looks back on up to `len_lookback_buffer` of this chunk's steps.

        Raises BadEpisode when the episode is done, and for a negative length.
        """
        return pieces.cut(self, len_lookback_buffer)

    def slice(self, slice_: Part, *, len_lookback_buffer: int | None = None) -> Self:
        """The steps `slice_.start` to `slice_.stop` as an episode: their actions, and one observation more.

        Bounds count from timestep 0 or from the end, and are cut to the episode as in Python. The steps before the slice become
        its lookback buffer: as many as this one's, or `len_lookback_buffer` where there are so many. The flags are kept where
        the slice reaches the end.

        Raises BadEpisode for a step other than 1 (a trajectory may have no gaps) and for a negative length.
        """
        return pieces.part(self, slice_, len_lookback_buffer)

    def __getitem__(self, item: Part) -> Self:
        """`episode[2:5]`: as `slice`."""
        if not isinstance(item, Part):
            raise self._bad(f"episode[{item!r}]", fix="episode[a:b] for a piece, get_observations(i) and its like for a step")
        return self.slice(item)

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Add the chunk in which this one continues, its lookback buffer left out; `other` is not changed.

        Raises BadEpisode, leaving the episode as it was, unless ids agree, this chunk is not done, `other` begins at the
        timestep and with the observation that this one ends with, and both have the same extra model outputs.
        """
        pieces.append_chunk(self, other)

    # ---- states and checks ----

    def get_state(self) -> dict[str, Any]:
        """The episode in RLlib's state layout, which RLlib's `from_state` takes too. Arrays are not copied."""
        return pieces.state_of(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The episode of a state by RLlib 2.40 to 2.60 or by `get_state`, over the state's arrays.

        Raises BadEpisode for a state of another form or with lengths that disagree.
        """
        return pieces.episode_of(cls, state)

    add_temporary_timestep_data = get_temporary_timestep_data = pieces.gone


def _any_arrays(buffers: Mapping[str, InfiniteLookbackBuffer]) -> bool:
    for buffer in buffers.values():  # noqa: SIM110  a generator would take five times as long
        if buffer.finalized:
            return True
    return False
