"""Environments by name (`--env`): a gymnasium id, `module:EnvId`, or a class or function, `python:package.module:make_env`.

Code is imported only because the caller names it, never because a dataset, manifest or run folder does
(`formats/asked_environment.py` lists which recorded fields are used).

An exception while an environment is imported, made or closed becomes BadData with its name; a missing package becomes
MissingPackage; an id that gymnasium does not know becomes UnknownEnvironment.

A multi-agent environment (PettingZoo, parallel and AEC API) is wrapped as one gymnasium environment, `Game`. A game lasts from
reset until no agent is left. Observations are a Dict by agent of the agent's last observation (`OBS`) and `STATE`, six
numbers: whether the agent is SHOWN an observation in this step, whether it ACTS on it, whether it TERMINATED or was TRUNCATED,
its REWARD since its previous observation, and its RETURN so far. Actions are a Dict by agent; only the actions of acting
agents are used. So games are played, seeded and recorded in vector slots like all environments.

The observations that an agent is shown, in order, form its episode; the last one carries its end flag. They come from `last()`
at the agent's turns (AEC API), or from `reset` and `step` (parallel API). The reward of an action is the sum of the agent's
rewards until its next observation. ValueError where an environment breaks PettingZoo's rules: an agent returns after its end,
leaves without an end flag, or ends without a last observation.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import gymnasium.wrappers
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from offline_cli.errors import BadConfig, BadData, MissingPackage, OfflineCliError, UnknownEnvironment, UnsupportedSpace
from offline_cli.import_path import PYTHON, call_of, imported, missing_package, named_object
from offline_cli.spaces import Space, check_supported, describe, same_space
from offline_cli.step_values import flag_of, reward_of
from offline_cli.trees import rows_of

Env = gym.Env[Any, Any]
FORMS = (
    "a registered id (python -c 'import gymnasium; gymnasium.pprint_registry()'), module:EnvId, or"
    " python:package.module:make_env"
)


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """An environment as manifests, run folders and plans record it."""

    id: str  # as `--env` takes it
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # for gymnasium.make; plain JSON values
    wrappers: tuple[str, ...] = ()  # as `--wrapper` takes them, inner first

    def flags(self, *, kwargs: bool = True, wrappers: bool = True) -> str:
        """The command-line options for kwargs and wrappers, quoted for a shell."""
        options = [f"--env-kwargs {shlex.quote(json.dumps(dict(self.kwargs)))}"] if kwargs else []
        if wrappers:
            options += [f"--wrapper {shlex.quote(text)}" for text in self.wrappers or ("none",)]
        return " ".join(options)


class Environment:
    """Creates copies of one environment and keeps them until `close` or the end of a `with` block."""

    def __init__(self, name: str, make: Callable[[], Any], spec: EnvironmentSpec | None = None) -> None:
        self.name, self.spec = name, EnvironmentSpec(name) if spec is None else spec
        self._make = make
        self._singles: list[Env] = [self._made()]
        first = self._singles[0]
        self.agents = first.spaces_of if isinstance(first, Game) else None  # spaces by agent; None: single agent
        try:
            self.observation_space, self.action_space = (self._space(side) for side in ("observation_space", "action_space"))
        except Exception:
            self.close()
            raise

    def _space(self, side: str) -> Space:
        space: Space | None = getattr(self._singles[0], side, None)
        if space is None:
            fix = "set it in __init__, as gymnasium.Env requires"
            raise UnsupportedSpace(f"the environment has no {side}", where=self.name, fix=fix)
        check_supported(space, where=f"{side} of {self.name}")
        return space

    def singles(self, count: int) -> list[Env]:
        """`count` copies."""
        while len(self._singles) < count:
            self._singles.append(self._made())
        return self._singles[:count]

    def _made(self) -> Env:
        made = game_of(_guarded(self.name, "making", self._make), self.name)
        if not isinstance(made, gym.Env):
            what = f"{self.name!r} returned {type(made).__name__}, not a gymnasium.Env"
            raise UnknownEnvironment(
                what, where=f"--env {self.name}", fix="name a class or function that makes one gymnasium.Env"
            )
        return made

    def close(self) -> None:
        """Close every copy. Raises BadData if closing one raises."""
        held, self._singles = self._singles, []
        for env in held:
            _guarded(self.name, "closing", env.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_environment(name: str, kwargs: Mapping[str, Any] | None = None, wrappers: Sequence[str] = ()) -> Environment:
    """Open the environment `name` with `kwargs`, inside `wrappers`, innermost first.

    A wrapper is `package.module:Class` or a name from gymnasium.wrappers; arguments follow: `Name:key=value,...`.
    Raises UnknownEnvironment, UnsupportedSpace, MissingPackage, BadConfig for invalid kwargs or wrappers (naming all mistakes),
    and BadData where the environment's code raises.
    """
    given, around, make = dict(kwargs or {}), _wrappers(wrappers), _maker(name)
    if isinstance(make, gym.envs.registration.EnvSpec):
        # Both gymnasium checks slow each step; the rollout loop validates values and keeps the order of calls itself.
        make = partial(gym.make, replace(make, order_enforce=False), disable_env_checker=True)

    def made() -> Any:
        try:
            env = make(**given)
        except TypeError as err:
            if not given:
                raise
            fix = "pass arguments and values that the environment accepts"
            raise BadConfig(f"{name} cannot be made with {given}: {err}", where="--env-kwargs", fix=fix) from err
        for wrapper in around:
            env = wrapper(env)
        _check_keeps_no_moments(env, name)
        return env

    return Environment(name, made, EnvironmentSpec(name, given, tuple(wrappers)))


def _check_keeps_no_moments(env: Any, name: str) -> None:
    """Raise BadConfig for a gymnasium wrapper with running statistics: they differ between copies and are not saved."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, (gym.wrappers.NormalizeObservation, gym.wrappers.NormalizeReward)) and env.update_running_mean:
            kind = type(env).__name__
            what = f"{kind} normalizes {name} with running statistics of each copy, which are not saved"
            fix = "use the connector piece mean_std_filter instead, or set update_running_mean to False"
            raise BadConfig(what, where=f"wrapper {kind}", fix=fix)
        env = env.env


def spaces_of_env(named: str | EnvironmentSpec) -> tuple[Space, Space]:
    """Observation and action space of an environment; with several agents, the spaces that all of them share.

    Raises as `open_environment` does, and BadConfig where agents have different spaces.
    """
    spec = EnvironmentSpec(named) if isinstance(named, str) else named
    with open_environment(spec.id, spec.kwargs, spec.wrappers) as environment:
        if environment.agents is not None:
            return common_spaces(environment.agents, spec.id)
        return environment.observation_space, environment.action_space


def time_limit(spec: EnvironmentSpec) -> int | None:
    """The steps after which an environment, made before, truncates its episodes; None: unknown, or no limit."""
    known = gym.registry.get(spec.id.rpartition(":")[2])
    limit = spec.kwargs.get("max_episode_steps", known and known.max_episode_steps)
    return limit if isinstance(limit, int) and limit > 0 else None


def check_registered(name: str) -> None:
    """Raise UnknownEnvironment for an id that gymnasium does not know; names with a colon are not checked."""
    if ":" not in name:
        _maker(name)


# ---- names ----


def _maker(name: str) -> Any:
    """The gymnasium EnvSpec of an id, or the class or function that makes the environment."""
    is_code = name.startswith(PYTHON)
    module, colon, id_ = name.removeprefix(PYTHON).rpartition(":")
    found: Any = None
    if colon or is_code:
        found = imported(module, where=f"--env {name}", form=FORMS, unknown=UnknownEnvironment, raised=BadData)
    known, why = list(vars(found)) if found is not None else [], f"{module} has no {id_!r}"
    if not is_code:
        if id_.startswith("ALE/"):  # importing ale_py registers them
            _guarded(name, "importing ale_py for", lambda: importlib.import_module("ale_py"))
        try:
            return gym.spec(id_)
        except gym.error.Error as err:
            known += gym.registry
            if not (colon and isinstance(err, (gym.error.NameNotFound, gym.error.NamespaceNotFound))):
                why = str(err)
    for part in id_.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found
    near = [f"{name[: -len(id_)]}{match}" for match in get_close_matches(id_, known, n=3, cutoff=0.5)]
    what = f"no environment {name!r}: " + (
        why if found is None else f"it is {type(found).__name__}, not a function that makes one"
    )
    fix = f"did you mean {' or '.join(near)}?" if near else FORMS
    raise UnknownEnvironment(what, where=f"--env {name}", fix=fix, details={"near": near})


def _guarded(name: str, doing: str, call: Callable[[], Any]) -> Any:
    """Return `call()`; its exceptions become MissingPackage or BadData."""
    try:
        return call()
    except OfflineCliError:
        raise
    except (Exception, SystemExit) as err:
        target = missing_package(err) if isinstance(err, ModuleNotFoundError) else None
        if target is not None or isinstance(err, gym.error.DependencyNotInstalled):
            hint = re.search(r"pip install [^`]+", str(err))
            fix = hint[0] if hint else f"pip install {target or 'what the environment needs'}"
            raise MissingPackage(f"{name} needs a package: {err}", where=f"--env {name}", fix=fix) from err
        fix = "run the environment alone in Python to see the full traceback"
        raise BadData(f"{doing} {name} raised {err!r}", where=f"--env {name}", fix=fix) from err


# ---- wrappers ----


def _wrappers(texts: Sequence[str]) -> list[Callable[[Any], Any]]:
    """Parse the values of `--wrapper` into callables. Raises BadConfig with all mistakes."""
    made, wrong = list[Callable[[Any], Any]](), list[str]()
    for text in texts:
        name, arguments, mistakes = call_of(text)
        try:
            path = name.removeprefix(PYTHON) if ":" in name else f"{gymnasium.wrappers.__name__}:{name}"
            form = "package.module:Class, or the name of one of gymnasium.wrappers"
            found = named_object(path, where=f"--wrapper {text}", form=form, raised=BadData)
            made.append(partial(_wrapped, text, found, arguments))
        except BadConfig as err:
            mistakes = [f"{err.what} ({err.fix})"]
        wrong += [f"{text}: {mistake}" for mistake in mistakes]
    if wrong:
        where = "; ".join(f"--wrapper {text}" for text in texts if any(one.startswith(text) for one in wrong))
        raise BadConfig.of(wrong, where=where, fix="--wrapper NAME:key=value,...")
    return made


def _wrapped(text: str, wrapper: Any, arguments: Mapping[str, Any], env: Any) -> Any:
    if getattr(wrapper, "__module__", "").startswith(gymnasium.wrappers.__name__):  # they take tuples; JSON has only lists
        arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    try:
        return wrapper(env, **arguments)
    except (TypeError, ValueError, AssertionError) as err:
        fix = "pass arguments and values that the wrapper accepts"
        raise BadConfig(f"the wrapper cannot be made: {err}", where=f"--wrapper {text}", fix=fix) from err


# ---- several agents ----


OBS, STATE = "obs", "state"
SHOWN, ACTS, TERMINATED, TRUNCATED, REWARD, RETURN = range(6)  # indices into STATE (..., 6), float64


def game_of(made: Any, name: str) -> Any:
    """Wrap a PettingZoo environment as a Game; return others as they are. Raises BadConfig if `possible_agents` is missing."""
    known = sys.modules.get("pettingzoo.utils.env")  # imported already if `made` is such an environment
    if known is None or isinstance(made, gym.Env):
        return made
    if isinstance(made, known.ParallelEnv):
        return ParallelGame(made, name)
    return TurnGame(made, name) if isinstance(made, known.AECEnv) else made


def common_spaces(agents: Mapping[str, tuple[Space, Space]], name: str) -> tuple[Space, Space]:
    """The observation and action space that all agents share. Raises BadConfig if they differ."""
    first = next(iter(agents.values()))
    if any(not all(map(same_space, own, first)) for own in agents.values()):
        listed = [f"{agent}: {describe(own[0])}, {describe(own[1])}" for agent, own in agents.items()]
        fix = "pad observations and actions to one size, with a --wrapper of your own or of SuperSuit (pad_observations_v0)"
        raise BadConfig(f"agents have different spaces: {'; '.join(listed)}", where=f"--env {name}", fix=fix)
    return first


class Game(gym.Env[Any, Any]):
    """A PettingZoo environment as a gymnasium.Env (see the module). `_begin` and `_play` of subclasses call `_show`."""

    def __init__(self, played: Any, name: str) -> None:
        listed = getattr(played, "possible_agents", None)
        if not listed:
            what = f"{name} does not list its agents (possible_agents)"
            raise BadConfig(what, where=f"--env {name}", fix="set possible_agents to the list of all agents")
        self._played, self._called = played, {str(agent): agent for agent in listed}
        self.spaces_of: dict[str, tuple[Space, Space]] = {
            agent: (played.observation_space(own), played.action_space(own)) for agent, own in self._called.items()
        }
        state = spaces.Box(-np.inf, np.inf, (6,), np.float64)
        parts = {agent: spaces.Dict([(OBS, own[0]), (STATE, state)]) for agent, own in self.spaces_of.items()}
        self.observation_space = spaces.Dict(list(parts.items()))
        self.action_space = spaces.Dict([(agent, own[1]) for agent, own in self.spaces_of.items()])
        self._nothing = {agent: rows_of(create_empty_array(own[0]), 0) for agent, own in self.spaces_of.items()}
        self._seen: dict[str, Any] = {}
        self._state: dict[str, Any] = {}
        self._infos: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a game."""
        self._seen, self._infos = dict(self._nothing), {}
        self._state = {agent: np.zeros(6) for agent in self._called}
        self._begin(seed)
        if not any(state[ACTS] for state in self._state.values()):
            raise ValueError("no agent acts after reset")
        return self._shown(), self._infos

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step all acting agents; the reward is the sum over agents."""
        acting = [agent for agent, state in self._state.items() if state[ACTS]]
        for state in self._state.values():
            state[[SHOWN, ACTS, REWARD]] = 0
        self._infos = {}
        self._play(acting, action)
        over = not any(state[ACTS] for state in self._state.values())
        for agent, state in self._state.items() if over else ():
            if self._seen[agent] is not self._nothing[agent] and not state[[TERMINATED, TRUNCATED]].any():
                raise ValueError(f"the game is over, and {agent} neither terminated nor truncated")
        return self._shown(), float(sum(state[REWARD] for state in self._state.values())), over, False, self._infos

    def close(self) -> None:
        """Close the environment."""
        self._played.close()

    def _shown(self) -> dict[str, Any]:
        return {agent: {OBS: self._seen[agent], STATE: state} for agent, state in self._state.items()}

    def _show(self, own: Any, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> bool:
        """Record an agent's next observation, reward and flags; return whether it acts on it."""
        agent = str(own)
        if agent not in self._state:
            raise ValueError(f"agent {agent!r} is not in possible_agents: {', '.join(self._called)}")
        state = self._state[agent]
        if state[TERMINATED] or state[TRUNCATED]:
            raise ValueError(f"agent {agent!r} returns after its end")
        if observation is None:
            raise ValueError(f"agent {agent!r} has no observation")
        self._seen[agent] = observation
        reward, flags = reward_of(reward), (flag_of(terminated), flag_of(truncated))
        state[:] = 1, not any(flags), *flags, reward, state[RETURN] + reward
        if info:
            self._infos[agent] = dict(info)
        return bool(state[ACTS])

    def _begin(self, seed: int | None) -> None:
        raise NotImplementedError

    def _play(self, acting: list[str], action: Any) -> None:
        raise NotImplementedError


class ParallelGame(Game):
    """All live agents act at once."""

    def _begin(self, seed: int | None) -> None:
        observations, infos = self._played.reset(seed=seed)
        for agent in self._played.agents:
            self._show(agent, observations.get(agent), 0.0, False, False, infos.get(agent))

    def _play(self, acting: list[str], action: Any) -> None:
        given = {self._called[agent]: action[agent] for agent in acting}
        observations, rewards, terminated, truncated, infos = self._played.step(given)
        there = self._played.agents
        for agent in [*given, *(joined for joined in there if joined not in given)]:
            ends, cut = (agent in given and flags.get(agent, False) for flags in (terminated, truncated))
            if agent not in there and not (ends or cut):
                raise ValueError(f"agent {agent!r} leaves without being terminated or truncated")
            self._show(agent, observations.get(agent), rewards.get(agent, 0.0), ends, cut, infos.get(agent))


class TurnGame(Game):
    """One agent acts at a time."""

    def _begin(self, seed: int | None) -> None:
        self._played.reset(seed=seed)
        self._next_turn()

    def _play(self, acting: list[str], action: Any) -> None:
        self._played.step(action[acting[0]])
        self._next_turn()

    def _next_turn(self) -> None:
        """Advance to the next agent that acts; agents that have ended get their last observation on the way."""
        played = self._played
        while played.agents and not self._show(played.agent_selection, *played.last()):
            played.step(None)
