"""Copies of an environment that play side by side, stepped by gymnasium's SyncVectorEnv or AsyncVectorEnv.

No copy resets itself (`AutoresetMode.DISABLED`). A vector environment always steps all of its copies, so one without an
episode to play is reset without a seed, and then stands still. What a copy raises comes back as its answer: so its episode can
be named, and the other copies' steps are not lost.

Infos are copied, since environments reuse theirs. `--infos` says which are kept: `plain`: numbers, texts, arrays of these, and
lists and mappings of all of them; other entries are dropped, and counted by key. `all`: an entry that cannot be stored is an
error. `none`: nothing is kept.
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
    """An info as one value, which gymnasium's vector environments hand on as it is."""

    kept: dict[str, Any]
    dropped: tuple[str, ...] = ()  # keys, with dots

    def __bool__(self) -> bool:
        return bool(self.kept or self.dropped)


NOTHING: Final = KeptInfo({})


def kept_info(info: Any, how: str) -> KeptInfo:
    """The info as `how` says. Raises ValueError, with the key, where `all` cannot be kept."""
    if how == "none" or not info:
        return NOTHING
    if not isinstance(info, Mapping):
        raise ValueError(f"an info of type {type(info).__name__}, which is not a mapping")
    dropped: list[str] = []
    kept = _pruned(info, "", dropped)
    if dropped and how == "all":
        raise ValueError(f"an info with {', '.join(dropped)}, which cannot be stored")
    return KeptInfo(kept, tuple(dropped))


def _pruned(info: Mapping[Any, Any], path: str, dropped: list[str]) -> dict[Any, Any]:
    kept = {}
    for key, value in info.items():
        if type(key) is str and type(value) in PLAIN:  # quick: what most infos hold
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


TOLD: Final = "offline_cli"  # the key of a copy's own answer: its info, or what it raised
PATIENCE: Final = 5.0  # seconds for a process that has died to be gone
Infos = list[KeptInfo] | None


class Failure(NamedTuple):
    """What a copy raised, in a form that travels between processes."""

    what: str  # "ValueError(...) (step)"
    trace: str = ""  # the traceback, where it was raised
    is_info: bool = False  # an info cannot be stored: no mistake of the environment


class CopyFailed(Exception):
    """A copy raised, died or did not answer; `slot` says which."""

    def __init__(self, slot: int, failure: Failure) -> None:
        super().__init__(f"{failure.what}\n{failure.trace}".strip())
        self.slot, self.failure = slot, failure


class Copy(gym.Wrapper[Any, Any, Any, Any]):
    """One copy: values are checked against its spaces, infos are kept as they are, and what it raises is its answer."""

    def __init__(self, env: gym.Env[Any, Any], infos: str, *, closes: bool) -> None:
        super().__init__(env)
        self._fit, self._infos, self._closes = fitter(env.observation_space), infos, closes
        self._dtype, self._shape = env.observation_space.dtype, env.observation_space.shape  # None of Dict and Tuple
        self.metadata = dict(env.metadata or {})  # gymnasium writes into it
        self._last: Any = rows_of(zero_rows(env.observation_space, 1), 0)
        self._stands = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; without a seed, stand still."""
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
        """Close the environment, unless its opener does."""
        if self._closes:
            super().close()  # type: ignore[no-untyped-call]


class Copies:
    """S copies. Methods raise CopyFailed; observations, leaves (S, ...), and infos are the caller's to keep."""

    def __init__(self, environment: Environment, count: int, *, infos: str, vectorize: str, timeout: float | None) -> None:
        """`infos`, `vectorize`, `timeout`: see Plan. Raises what `open_environment` raises."""
        self.count, self._timeout, self._failed = count, timeout, False
        self._vector: Any
        if vectorize == "async":
            make = partial(_made_copy, environment.spec, infos)
            self._vector = AsyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.DISABLED)
        else:
            makers = [partial(Copy, env, infos, closes=False) for env in environment.singles(count)]
            self._vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)

    def reset(self, seeds: Mapping[int, int | None]) -> tuple[Tree, Infos]:
        """Begin episodes in these slots, with these seeds; None: stand still. Observations and infos of all slots."""
        mask = np.zeros(self.count, np.bool_)
        mask[[*seeds]] = True
        given = {"seed": [seeds.get(slot) for slot in range(self.count)], "options": {"reset_mask": mask}}
        observations, infos = self._answer("reset", **given)
        return observations, _kept(infos)

    def step(self, actions: Tree) -> tuple[Tree, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step all slots by actions (S, ...); those that stand still get no reward and do not end."""
        *answer, infos = self._answer("step", actions=actions)
        return *answer, _kept(infos)

    def _answer(self, doing: str, **given: Any) -> Any:
        """The vector environment's answer. Raises CopyFailed for a process that has died, or does not answer in time."""
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
            what = f"the end of its process, with exit code {vector.processes[slot].exitcode} ({doing})"
            raise CopyFailed(slot, Failure(what)) from err
        self._failed = False
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # a process that has died or hangs cannot be asked to close its copy
            self._vector.close(**({"terminate": True} if self._failed else {}))


def _kept(infos: Mapping[str, Any]) -> Infos:
    """Infos (S,) as the copies gave them; None: no slot has any. Raises CopyFailed."""
    if TOLD not in infos:
        return None
    for slot, told in enumerate(infos[TOLD]):
        if isinstance(told, Failure):
            raise CopyFailed(slot, told)
    return [NOTHING if told is None else told for told in infos[TOLD]]


def _made_copy(spec: EnvironmentSpec, infos: str) -> Copy:
    """A copy in a process of its own, which leaves it to its parent to act on Ctrl-C."""
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return Copy(open_environment(spec.id, spec.kwargs, spec.wrappers).singles(1)[0], infos, closes=True)
    except OfflineCliError as err:
        raise RuntimeError(str(err)) from err  # gymnasium makes errors again from their text
