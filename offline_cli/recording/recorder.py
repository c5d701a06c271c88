"""`Recorder`: a gymnasium wrapper that writes what a program's own loop plays to a dataset; `VectorRecorder` for a vector of
environments, in each of gymnasium's three ways to begin again.

What the loop gets is what the environment returns, unchanged. Recorded are observations as the wrapped environment returns
them, actions as it takes them, rewards, ends, infos, and extra model outputs that `add_outputs` names. An episode that the
loop leaves before its end is kept as truncated, and counted (`unfinished-episode`).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self, Unpack

import gymnasium as gym
import gymnasium.vector
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from offline_cli.datasets.manifest import Environment
from offline_cli.episodes.episode_spaces import space_tree, zero_rows
from offline_cli.errors import BadData, UsageError
from offline_cli.files.locations import Location
from offline_cli.options.keywords import takes
from offline_cli.options.playing import RecorderOptions
from offline_cli.playing.own_vector_slots import OwnVectorSlots, resets_by
from offline_cli.playing.slots import SlotFailure, owned
from offline_cli.policies.policy import category_check, fitted, row_writer, rows_of
from offline_cli.recording.live_episodes import LiveEpisodes, broken
from offline_cli.source_code import code_of
from offline_cli.step_values import flag_of, reward_of
from offline_cli.trees import Tree, map_leaves

__all__ = ["Recorder", "VectorRecorder"]

OF_VECTORS: Final = frozenset({"num_envs", "vectorization_mode"})
ONE: Final = np.zeros(1, np.int64)
LIVE: Final = np.ones(1, np.bool_)
_log = logging.getLogger(__name__)


class _Recording:
    """What both recorders offer besides being an environment."""

    _live: LiveEpisodes

    @property
    def episodes_recorded(self) -> int:
        """Whole episodes so far; with `resume`, those that are there already included: a loop of seeds goes on there."""
        return self._live.episodes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """As `close`; where the block raises, what is whole is committed as incomplete, which `resume=True` continues."""
        try:
            if kind is not None:
                self._live.close(complete=False)
        finally:
            self.close()

    def close(self) -> None:
        """Commit what was recorded, and close the environment. A second call changes nothing more."""
        raise AssertionError("each recorder closes its environment")


class Recorder(_Recording, gym.Wrapper[Any, Any, Any, Any]):
    """Writes what is played in `env` to the dataset `out`, until it is closed.

    `with Recorder(gym.make("CartPole-v1"), "mine") as env:` and a loop of `env.reset` and `env.step`. Put it where the actions
    and observations pass that are to be learned from: outside of wrappers that change them for the policy.

    Raises OutputExists, UsageError, UnsupportedSpace, StorageError when it is made; BadData from `step` and `reset` for values
    that no dataset can hold, and what the environment raises, as it is.
    """

    @takes(RecorderOptions, where="Recorder")
    def __init__(
        self, env: gym.Env[Any, Any], out: str | os.PathLike[str] | Location, **options: Unpack[RecorderOptions]
    ) -> None:
        super().__init__(env)
        spaces = env.observation_space, env.action_space
        self._live = LiveEpisodes(out, 1, spaces, _environment(env, options), code_of(env), options)
        self._name, self._check = _name(env), category_check(spaces[1], "the action")
        self._obs, self._action = zero_rows(spaces[0], 1), zero_rows(spaces[1], 1)
        self._write_obs, self._write_action = row_writer(self._obs), row_writer(self._action, "an action")
        self._info: NDArray[Any] | None = None  # (1,) that came with the observation

    def add_outputs(self, **outputs: Any) -> None:
        """Extra model outputs of the next step, `action_logp=-0.7` for one: numbers, arrays, dicts of them; the same names
        before every step."""
        self._live.outputs = {name: map_leaves(lambda leaf: np.array(leaf)[None], value) for name, value in outputs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium. An episode that is not over is kept as truncated."""
        observation, info = super().reset(seed=seed, options=options)
        self._cut(self._live.playing)
        self._live.at_start[:] = True
        self._see(observation, info, "reset")
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See gymnasium. Raises UsageError without a `reset` before an episode."""
        live = self._live
        if not (live.playing[0] or live.at_start[0]):
            fix = "env.reset() before the first step of an episode; a wrapper that resets by itself goes around the recorder"
            raise UsageError("a step outside of an episode", where=self._name, fix=fix)
        try:
            self._write_action(0, action)
            self._check(self._action)
        except ValueError as err:
            raise broken(err, "the action given to step", self._name) from err
        live.act(self._obs, self._info, self._action)
        observation, reward, terminated, truncated, info = super().step(action)
        try:
            rewards, flags = np.array([reward_of(reward)]), (np.array([flag_of(terminated)]), np.array([flag_of(truncated)]))
        except ValueError as err:
            raise broken(err, "step", self._name) from err
        live.stepped(rewards, LIVE)
        self._see(observation, info, "step")
        if flags[0][0] or flags[1][0]:
            live.ended(ONE, flags, self._copy(), self._info)
        live.flush()
        return observation, reward, terminated, truncated, info

    def _see(self, observation: Any, info: Mapping[str, Any], doing: str) -> None:
        try:
            self._write_obs(0, observation)
            kept = owned(info) if info else None
        except ValueError as err:
            raise broken(err, doing, self._name) from err
        self._info = None
        if kept:
            self._info = np.full(1, None)
            self._info[0] = kept

    def close(self) -> None:
        """Commit what was recorded, and close the environment. A second call changes nothing more."""
        try:
            self._cut(self._live.playing)
            self._live.close(complete=True)
        finally:
            super(_Recording, self).close()  # type: ignore[no-untyped-call]

    def _copy(self) -> Tree:
        return map_leaves(np.array, self._obs)

    def _cut(self, slots: NDArray[np.bool_]) -> None:
        self._live.cut(np.flatnonzero(slots), self._copy(), self._info)


class VectorRecorder(_Recording, gymnasium.vector.VectorWrapper):
    """Writes what is played in the copies of `envs` to the dataset `out`, until it is closed; see `Recorder`.

    Episodes are written in the order in which they began, so that whole ones wait in memory for a longer one that began
    before them.
    """

    @takes(RecorderOptions, where="VectorRecorder")
    def __init__(
        self,
        envs: gymnasium.vector.VectorEnv[Any, Any, Any],
        out: str | os.PathLike[str] | Location,
        **options: Unpack[RecorderOptions],
    ) -> None:
        super().__init__(envs)
        self._name = _name(envs)
        self._given = _Given(envs)
        self._slots = _DrivenSlots(self._given, envs.single_observation_space, self._name)
        spaces = envs.single_observation_space, envs.single_action_space
        self._live = LiveEpisodes(out, envs.num_envs, spaces, _environment(envs, options), code_of(envs), options)
        self._actions_like = space_tree(envs.single_action_space)
        self._check_actions = category_check(envs.single_action_space, "the action")

    def add_outputs(self, **outputs: Any) -> None:
        """Extra model outputs of the next step by name: arrays, or dicts of them, whose first axis is the copies."""
        self._live.outputs = {name: map_leaves(np.array, value) for name, value in outputs.items()}

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """See gymnasium; `options={"reset_mask": ...}` begins again in these copies. Episodes that are not over are kept as
        truncated."""
        mask = None if options is None else options.get("reset_mask")
        begun = np.ones(self.num_envs, np.bool_) if mask is None else np.array(mask, np.bool_)
        given: tuple[Any, dict[str, Any]] = super().reset(seed=seed, options=options)
        self._cut(self._live.playing & begun)
        self._checked("reset", lambda: self._slots.see_reset(given, begun))
        self._live.at_start |= begun
        return given

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """See gymnasium. Raises UsageError for copies that were not reset where the vector does not reset them itself."""
        live, slots = self._live, self._slots
        playing = live.playing | live.at_start
        resets_itself = slots.mode == AutoresetMode.NEXT_STEP and slots.was_reset
        if not playing.all() and not resets_itself:
            where = f"{self._name}, copies {np.flatnonzero(~playing).tolist()}"
            raise UsageError("a step outside of an episode", where=where, fix="envs.reset() before the first step")
        live.act(slots.obs, slots.infos, self._checked("the actions given to step", lambda: self._rows(actions)))
        given: tuple[Any, Any, Any, Any, dict[str, Any]] = super().step(actions)
        self._given.result = given
        self._checked("step", lambda: slots.step(None, playing))
        live.stepped(slots.rewards, playing)
        ended = np.flatnonzero(slots.ended & playing)
        finals, infos = slots.finals(ended)
        live.ended(ended, (slots.terminated[ended], slots.truncated[ended]), finals, infos)
        if slots.mode == AutoresetMode.NEXT_STEP:
            live.at_start |= ~playing
        elif slots.mode == AutoresetMode.SAME_STEP:
            live.at_start[ended] = True
        live.flush()
        return given

    def _rows(self, actions: Any) -> Tree:
        """The actions as rows of the space's dtypes, leaves (S, ...). Raises ValueError."""

        def leaf(space: Any, values: Any) -> NDArray[Any]:
            rows = np.asarray(values)
            if rows.shape != (self.num_envs, *(space.shape or ())):
                raise ValueError(f"actions of shape {rows.shape}, and the space says {(self.num_envs, *(space.shape or ()))}")
            return fitted(rows, space.dtype, "actions")

        found = map_leaves(leaf, self._actions_like, actions)
        self._check_actions(found)
        return found

    def _checked(self, doing: str, call: Any) -> Any:
        try:
            return call()
        except SlotFailure as err:
            raise BadData(err.cause, where=f"{self._name}: {doing}", fix="return what the spaces say") from err
        except ValueError as err:
            raise broken(err, doing, self._name) from err

    def close(self, **kwargs: Any) -> None:
        """Commit what was recorded, and close the environments. A second call changes nothing more."""
        try:
            self._cut(self._live.playing)
            self._live.close(complete=True)
        finally:
            super(_Recording, self).close(**kwargs)

    def _cut(self, slots: NDArray[np.bool_]) -> None:
        numbers = np.flatnonzero(slots)
        infos = self._slots.infos
        self._live.cut(numbers, rows_of(self._slots.obs, numbers), None if infos is None else infos[numbers])


class _Given:
    """Stands for a vector of environments whose results are there already."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        self.num_envs, self.metadata = envs.num_envs, envs.metadata
        self.result: Any = None

    def step(self, _: Any) -> Any:
        return self.result

    def reset(self, **_: Any) -> Any:
        return self.result


class _DrivenSlots(OwnVectorSlots):
    """The slots of a vector that its caller steps and resets."""

    def __init__(self, given: _Given, observation_space: gym.Space[Any], name: str) -> None:
        self.mode = resets_by(given, name)
        self._make_ready(given, observation_space, self.mode)
        self._results = given
        self.was_reset = False

    def see_reset(self, given: Any, begun: NDArray[np.bool_]) -> None:
        """Be at what a reset returned; the slots that are not `begun` keep their infos."""
        self._results.result = given
        before = self.infos
        self._reset()
        if self.infos is not None and before is not None and not begun.all():
            self.infos = np.where(begun, self.infos, before)
        self.was_reset = True

    def _plain(self, obs: Tree) -> Tree:
        return map_leaves(np.array, super()._plain(obs))  # the caller may write into what it gets

    def _turn(self, infos: Mapping[str, Any], live: NDArray[np.bool_]) -> None:
        self.ended = self.terminated | self.truncated
        self._final = None
        if self.mode == AutoresetMode.SAME_STEP and self.ended.any():
            self._turn_over(infos)


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__


def _environment(env: Any, options: RecorderOptions) -> Environment | None:
    """What the manifest says of the environment: what was given; else what gymnasium knows of how it was made."""
    if options["env_id"] is not None:
        return Environment(options["env_id"], {})
    spec = getattr(env, "spec", None)
    if spec is None:
        return None
    kwargs = {name: value for name, value in spec.kwargs.items() if name not in OF_VECTORS and value is not None}
    registered = gym.registry.get(spec.id)
    if registered is not None and registered.max_episode_steps != spec.max_episode_steps:
        kwargs["max_episode_steps"] = spec.max_episode_steps
    return Environment(spec.id, _plain(kwargs, spec.id), tuple(map(_call, spec.additional_wrappers)))


def _call(wrapper: Any) -> str:
    """A wrapper that gymnasium recorded, as `--wrapper` takes it."""
    module, _, name = wrapper.entry_point.partition(":")
    is_gymnasiums = module.startswith("gymnasium.wrappers.") and not module.startswith("gymnasium.wrappers.vector")
    arguments = _plain({name: value for name, value in (wrapper.kwargs or {}).items() if value is not None}, wrapper.name)
    told = ",".join(f"{key}={json.dumps(value)}" for key, value in arguments.items())
    return (name if is_gymnasiums else f"{module}:{name}") + (f":{told}" if told else "")


def _plain(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The arguments that JSON holds; the others are named in a note."""
    plain = {key: value for key, value in arguments.items() if _is_plain(value)}
    left = sorted(arguments.keys() - plain.keys())
    if left:
        _log.warning(
            "note: arguments of %s are not kept in the manifest, because JSON has no form for them: %s", name, ", ".join(left)
        )
    return plain


def _is_plain(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == (list(value) if isinstance(value, tuple) else value))
    except (TypeError, ValueError):
        return False
