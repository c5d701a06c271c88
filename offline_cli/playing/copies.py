"""Parallel copies of an environment, stepped by gymnasium's SyncVectorEnv or AsyncVectorEnv.

Autoreset is off (`AutoresetMode.DISABLED`). A vector environment always steps all copies, so an idle copy is reset without a
seed and then ignores steps. A copy returns its exception as an info, so that the error can name its episode, and the other
copies' steps are not lost.

Infos are copied, because environments reuse them. `--infos plain` keeps numbers, strings, arrays, and lists and mappings of
these; it drops other entries and counts them by key. `all`: an entry that cannot be stored is an error. `none`: keep nothing.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from offline_cli.environments import Environment, EnvironmentSpec, open_environment
from offline_cli.episodes.codec.pack import plain_mapping
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.episodes.fit import fitter
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.policies.policy import RAISED
from offline_cli.step_values import flag_of, reward_of
from offline_cli.tally import Tally
from offline_cli.trees import Tree, rows_of

DROPPED: Final = "info-dropped"
PLAIN: Final = frozenset({bool, float, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64})


@dataclass(frozen=True, slots=True)
class KeptInfo:
    """An info wrapped in one object, which gymnasium's vector environments pass through unchanged."""

    kept: dict[str, Any]
    dropped: tuple[str, ...] = ()  # dotted keys

    def __bool__(self) -> bool:
        return bool(self.kept or self.dropped)


NOTHING: Final = KeptInfo({})


def kept_info(info: Any, how: str) -> KeptInfo:
    """The kept part of an info; `how`: see `--infos`. Raises ValueError, with the key, if `all` cannot be kept."""
    if how == "none" or not info:
        return NOTHING
    if not isinstance(info, Mapping):
        raise ValueError(f"the info is a {type(info).__name__}, not a mapping")
    dropped: list[str] = []
    kept = _pruned(info, "", dropped)
    if dropped and how == "all":
        raise ValueError(f"the info entries {', '.join(dropped)} cannot be stored")
    return KeptInfo(kept, tuple(dropped))


def _pruned(info: Mapping[Any, Any], path: str, dropped: list[str]) -> dict[Any, Any]:
    kept = {}
    for key, value in info.items():
        if type(key) is str and type(value) in PLAIN:  # fast path for most infos
            kept[key] = value
        elif isinstance(value, Mapping):
            kept[key] = _pruned(value, f"{path}{key}.", dropped)
        else:
            try:
                plain_mapping({key: value}, tally=Tally(), where="info")
                kept[key] = deepcopy(value)
            except BadData:
                dropped.append(f"{path}{key}")
    return kept


TOLD: Final = "offline_cli"  # info key for a copy's KeptInfo or Failure
PATIENCE: Final = 5.0  # seconds to wait for a dying process
Infos = list[KeptInfo] | None


class Failure(NamedTuple):
    """An exception of a copy, picklable."""

    what: str  # "ValueError(...) (step)"
    trace: str = ""  # traceback
    is_info: bool = False  # an info cannot be stored; the environment is not at fault


class CopyFailed(Exception):
    """The copy in `slot` raised, died or did not answer."""

    def __init__(self, slot: int, failure: Failure) -> None:
        super().__init__(f"{failure.what}\n{failure.trace}".strip())
        self.slot, self.failure = slot, failure


class Copy(gym.Wrapper[Any, Any, Any, Any]):
    """One copy: checks values against its spaces, copies infos, and returns its exceptions as infos."""

    def __init__(self, env: gym.Env[Any, Any], infos: str, *, closes: bool) -> None:
        super().__init__(env)
        self._fit, self._infos, self._closes = fitter(env.observation_space), infos, closes
        self._dtype, self._shape = env.observation_space.dtype, env.observation_space.shape  # None for Dict and Tuple
        self.metadata = dict(env.metadata or {})  # gymnasium modifies it
        self._last: Any = rows_of(zero_rows(env.observation_space, 1), 0)
        self._stands = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; without a seed, become idle."""
        self._stands = seed is None
        if self._stands:
            return self._last, {}
        try:
            observation, info = self.env.reset(seed=seed)
            self._last = self._fit(observation)
        except RAISED as err:
            return self._last, self._failed("reset", err)
        return self._last, self._told("reset", info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        if self._stands:
            return self._last, 0.0, False, False, {}
        try:
            observation, reward, ended, cut, info = self.env.step(action)
            if type(observation) is not np.ndarray or observation.dtype != self._dtype or observation.shape != self._shape:
                observation = self._fit(observation)
            if type(reward) is not float or type(ended) is not bool or type(cut) is not bool:
                reward, ended, cut = reward_of(reward), flag_of(ended), flag_of(cut)
        except RAISED as err:
            return self._last, 0.0, False, False, self._failed("step", err)
        self._last = observation
        return observation, reward, ended, cut, self._told("step", info) if info else {}

    def _told(self, doing: str, info: Any) -> dict[str, Any]:
        try:
            kept = kept_info(info, self._infos)
        except ValueError as err:
            return {TOLD: Failure(f"{err} ({doing})", is_info=True)}
        return {TOLD: kept} if kept else {}

    def _failed(self, doing: str, error: BaseException) -> dict[str, Any]:
        self._stands = True
        return {TOLD: Failure(f"{error!r} ({doing})", "".join(traceback.format_exception(error)))}

    def close(self) -> None:
        """Close the environment if this copy owns it."""
        if self._closes:
            super().close()  # type: ignore[no-untyped-call]


class Copies:
    """S copies. Methods raise CopyFailed; the caller owns the returned observations, leaves (S, ...), and infos."""

    def __init__(self, environment: Environment, count: int, *, infos: str, vectorize: str, timeout: float | None) -> None:
        """`infos`, `vectorize`, `timeout`: see Plan. Raises like `open_environment`."""
        self.count, self._timeout, self._failed = count, timeout, False
        self._vector: Any
        if vectorize == "async":
            make = partial(_made_copy, environment.spec, infos)
            self._vector = AsyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.DISABLED)
        else:
            makers = [partial(Copy, env, infos, closes=False) for env in environment.singles(count)]
            self._vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)

    def reset(self, seeds: Mapping[int, int | None]) -> tuple[Tree, Infos]:
        """Start episodes in these slots with these seeds (None: idle); return observations and infos of all slots."""
        mask = np.zeros(self.count, np.bool_)
        mask[[*seeds]] = True
        given = {"seed": [seeds.get(slot) for slot in range(self.count)], "options": {"reset_mask": mask}}
        observations, infos = self._answer("reset", **given)
        return observations, _kept(infos)

    def step(self, actions: Tree) -> tuple[Tree, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step all slots with actions (S, ...); idle slots get no reward and do not end."""
        *answer, infos = self._answer("step", actions=actions)
        return *answer, _kept(infos)

    def _answer(self, doing: str, **given: Any) -> Any:
        """Call the vector environment. Raises CopyFailed for a process that died or timed out."""
        vector = self._vector
        if isinstance(vector, SyncVectorEnv):
            return getattr(vector, doing)(**given)
        self._failed = True  # until it has answered
        getattr(vector, f"{doing}_async")(**given)
        try:
            answer = getattr(vector, f"{doing}_wait")(timeout=self._timeout)
        except multiprocessing.TimeoutError:
            slot = next(slot for slot, pipe in enumerate(vector.parent_pipes) if not pipe.poll(0))
            raise CopyFailed(slot, Failure(f"no answer within {self._timeout:g} s, --step-timeout ({doing})")) from None
        except (EOFError, OSError) as err:
            for process in vector.processes:
                process.join(PATIENCE / self.count)
            slot = next((slot for slot, one in enumerate(vector.processes) if not one.is_alive()), 0)
            what = f"no answer: its process ended with exit code {vector.processes[slot].exitcode} ({doing})"
            raise CopyFailed(slot, Failure(what)) from err
        self._failed = False
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # a dead or hung process cannot close its copy
            self._vector.close(**({"terminate": True} if self._failed else {}))


def _kept(infos: Mapping[str, Any]) -> Infos:
    """The copies' infos (S,); None if no slot has any. Raises CopyFailed."""
    if TOLD not in infos:
        return None
    for slot, answer in enumerate(infos[TOLD]):
        if isinstance(answer, Failure):
            raise CopyFailed(slot, answer)
    return [NOTHING if answer is None else answer for answer in infos[TOLD]]


def _made_copy(spec: EnvironmentSpec, infos: str) -> Copy:
    """Build a copy in a worker process, which ignores Ctrl-C: the parent handles it."""
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return Copy(open_environment(spec.id, spec.kwargs, spec.wrappers).singles(1)[0], infos, closes=True)
    except OfflineCliError as err:
        raise RuntimeError(str(err)) from err  # gymnasium rebuilds exceptions from their message
