"""`Recorder`: a gymnasium wrapper that writes what a program's own loop plays to a dataset.

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
from typing import Any, Final, Self

import gymnasium as gym
import gymnasium.vector
import numpy as np
from numpy.typing import NDArray

from offline_cli.checked_keywords import checked
from offline_cli.choices import MAX_BYTES_PER_FILE, Compression, Count, RowFormat
from offline_cli.datasets.manifest import Environment
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.errors import UsageError
from offline_cli.files.locations import Location
from offline_cli.playing.slots import owned
from offline_cli.policies.policy import category_check, row_writer
from offline_cli.recording.live_episodes import LiveEpisodes, broken
from offline_cli.source_code import code_of
from offline_cli.step_values import flag_of, reward_of
from offline_cli.trees import Tree, map_leaves

__all__ = ["Recorder"]

OF_VECTORS: Final = frozenset({"num_envs", "vectorization_mode"})
ONE: Final = np.zeros(1, np.int64)
LIVE: Final = np.ones(1, np.bool_)
_log = logging.getLogger(__name__)


class Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """Writes what is played in `env` to the dataset `out`, until it is closed.

    `with Recorder(gym.make("CartPole-v1"), "mine") as env:` and a loop of `env.reset` and `env.step`. Put it where the actions
    and observations pass that are to be learned from: outside of wrappers that change them for the policy.

    Raises OutputExists, UsageError, UnsupportedSpace, StorageError when it is made; BadData from `step` and `reset` for values
    that no dataset can hold, and what the environment raises, as it is.
    """

    @checked
    def __init__(
        self,
        env: gym.Env[Any, Any],
        out: str | os.PathLike[str] | Location,
        *,
        env_id: str | None = None,
        policy: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        max_rows_per_file: Count | None = None,
        max_bytes_per_file: Count = MAX_BYTES_PER_FILE,
        compression: Compression = "zstd",
        resume: bool = False,
        allow_changes: bool = False,
        overwrite: bool = False,
        format: RowFormat = "episodes",
        append: bool = False,
    ) -> None:
        options = dict(locals())
        super().__init__(env)
        spaces = env.observation_space, env.action_space
        self._live = LiveEpisodes(out, 1, spaces, _environment(env, options), code_of(env), options)
        self._name, self._check = _name(env), category_check(spaces[1], "the action")
        self._obs, self._action = zero_rows(spaces[0], 1), zero_rows(spaces[1], 1)
        self._write_obs, self._write_action = row_writer(self._obs), row_writer(self._action, "an action")
        self._info: NDArray[Any] | None = None  # (1,) that came with the observation

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
            super().close()  # type: ignore[no-untyped-call]

    def _copy(self) -> Tree:
        return map_leaves(np.array, self._obs)

    def _cut(self, slots: NDArray[np.bool_]) -> None:
        self._live.cut(np.flatnonzero(slots), self._copy(), self._info)


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__


def _environment(env: Any, options: Mapping[str, Any]) -> Environment | None:
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
