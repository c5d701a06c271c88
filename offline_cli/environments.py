"""Environments by name: a gymnasium id, `module:EnvId`, or a class or function, `python:package.module:make_env`.

One place for every command that takes `--env`. Code is imported because the caller names it, never because a dataset, manifest
or run folder does (`formats/asked_environment.py` says what of a record from there is used).

Whatever an environment raises while it is imported, made or closed is BadData with its name; a package that it lacks is
MissingPackage; a name that gymnasium does not know is UnknownEnvironment.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import gymnasium.wrappers

from offline_cli.errors import BadConfig, BadData, MissingPackage, OfflineCliError, UnknownEnvironment, UnsupportedSpace
from offline_cli.games import Game, common_spaces, game_of
from offline_cli.import_path import EXTRAS, PYTHON, call_of, imported, named_object
from offline_cli.spaces import Space, check_supported

Env = gym.Env[Any, Any]
FORMS = (
    "a registered id (python -c 'import gymnasium; gymnasium.pprint_registry()'), module:EnvId, or"
    " python:package.module:make_env"
)


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """Which environment, as manifests, run folders and plans have it."""

    id: str  # as `--env` takes it
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # of gymnasium.make; plain JSON values
    wrappers: tuple[str, ...] = ()  # as `--wrapper` takes them, inner first

    def flags(self, *, kwargs: bool = True, wrappers: bool = True) -> str:
        """The options of a command that say these, quoted for a shell."""
        told = [f"--env-kwargs {shlex.quote(json.dumps(dict(self.kwargs)))}"] if kwargs else []
        if wrappers:
            told += [f"--wrapper {shlex.quote(text)}" for text in self.wrappers or ("none",)]
        return " ".join(told)


class Environment:
    """How to make copies of one environment; copies that were made are kept until `close`, or the end of a `with`."""

    def __init__(self, name: str, make: Callable[[], Any], spec: EnvironmentSpec | None = None) -> None:
        self.name, self.spec = name, EnvironmentSpec(name) if spec is None else spec
        self._make = make
        self._singles: list[Env] = [self._made()]
        first = self._singles[0]
        self.agents = first.spaces_of if isinstance(first, Game) else None  # observations and actions by agent, of several
        try:
            self.observation_space, self.action_space = (self._space(side) for side in ("observation_space", "action_space"))
        except Exception:
            self.close()
            raise

    def _space(self, side: str) -> Space:
        found: Space | None = getattr(self._singles[0], side, None)
        if found is None:
            fix = "set it in __init__, as gymnasium.Env asks"
            raise UnsupportedSpace(f"the environment has no {side}", where=self.name, fix=fix)
        check_supported(found, where=f"{side} of {self.name}")
        return found

    def singles(self, count: int) -> list[Env]:
        """`count` copies."""
        while len(self._singles) < count:
            self._singles.append(self._made())
        return self._singles[:count]

    def _made(self) -> Env:
        made = game_of(_guarded(self.name, "making", self._make), self.name)
        if not isinstance(made, gym.Env):
            what = f"{self.name!r} gave {type(made).__name__}, not a gymnasium.Env"
            raise UnknownEnvironment(what, where=f"--env {self.name}", fix="name what makes one gymnasium.Env")
        return made

    def close(self) -> None:
        """Close every copy. Raises BadData where one cannot be closed."""
        held, self._singles = self._singles, []
        for env in held:
            _guarded(self.name, "closing", env.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_environment(name: str, kwargs: Mapping[str, Any] | None = None, wrappers: Sequence[str] = ()) -> Environment:
    """The environment of that name, made with `kwargs`, inside `wrappers`: the first is the innermost.

    A wrapper is `package.module:Class`, or the name of one of gymnasium.wrappers; arguments follow, `Name:key=value,...`.
    Raises UnknownEnvironment, UnsupportedSpace, MissingPackage for what it needs, BadConfig for kwargs that it does not take
    and, naming all mistakes, for wrappers, and BadData where its code raises.
    """
    given, around, make = dict(kwargs or {}), _wrappers(wrappers), _maker(name)
    if isinstance(make, gym.envs.registration.EnvSpec):
        # Both checks of gymnasium slow each step: the loop that plays checks values against the spaces, and keeps the order.
        make = partial(gym.make, replace(make, order_enforce=False), disable_env_checker=True)

    def made() -> Any:
        try:
            env = make(**given)
        except TypeError as err:
            if not given:
                raise
            fix = "name arguments that the environment takes, with values that it accepts"
            raise BadConfig(f"{name} cannot be made with {given}: {err}", where="--env-kwargs", fix=fix) from err
        for wrapper in around:
            env = wrapper(env)
        _check_keeps_no_moments(env, name)
        return env

    return Environment(name, made, EnvironmentSpec(name, given, tuple(wrappers)))


def _check_keeps_no_moments(env: Any, name: str) -> None:
    """Raise BadConfig for a gymnasium wrapper whose running statistics change what each copy gives, and are saved nowhere."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, (gym.wrappers.NormalizeObservation, gym.wrappers.NormalizeReward)) and env.update_running_mean:
            kind = type(env).__name__
            what = f"{kind} changes what {name} gives by running statistics of each copy, which are not saved"
            fix = "train through the piece mean_std_filter instead, or set update_running_mean to False"
            raise BadConfig(what, where=f"wrapper {kind}", fix=fix)
        env = env.env


def spaces_of_env(named: str | EnvironmentSpec) -> tuple[Space, Space]:
    """Observation and action space of that environment, of several agents those of each. Raises as `open_environment` does, and
    BadConfig for agents of several spaces.
    """
    spec = EnvironmentSpec(named) if isinstance(named, str) else named
    with open_environment(spec.id, spec.kwargs, spec.wrappers) as environment:
        if environment.agents is not None:
            return common_spaces(environment.agents, spec.id)
        return environment.observation_space, environment.action_space


def check_registered(name: str) -> None:
    """Raise UnknownEnvironment for an id that gymnasium does not know; names of code are left to `open_environment`."""
    if ":" not in name:
        _maker(name)


# ---- names ----


def _maker(name: str) -> Any:
    """What makes the environment: gymnasium's record of an id, or a class or function."""
    is_code = name.startswith(PYTHON)
    module, colon, id_ = name.removeprefix(PYTHON).rpartition(":")
    found: Any = None
    if colon or is_code:
        found = imported(module, where=f"--env {name}", form=FORMS, unknown=UnknownEnvironment, raised=BadData)
    known, why = list(vars(found)) if found is not None else [], f"{module} has no {id_!r}"
    if not is_code:
        if id_.startswith("ALE/"):  # its package registers them
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
    """What `call` gives. Raises MissingPackage or BadData in place of what it raises."""
    try:
        return call()
    except OfflineCliError:
        raise
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as err:
        said = re.search(r"pip install [^`]+", str(err))
        package = (getattr(err, "name", None) or "what the environment needs").partition(".")[0]
        fix = said[0] if said else f"pip install {EXTRAS.get(package, package)}"
        raise MissingPackage(f"{name} needs a package: {err}", where=f"--env {name}", fix=fix) from err
    except (Exception, SystemExit) as err:
        fix = "check the environment by itself, in Python"
        raise BadData(f"{doing} {name} raised {err!r}", where=f"--env {name}", fix=fix) from err


# ---- wrappers ----


def _wrappers(texts: Sequence[str]) -> list[Callable[[Any], Any]]:
    """What `--wrapper` names, with its arguments. Raises BadConfig with all mistakes."""
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
    if getattr(wrapper, "__module__", "").startswith(gymnasium.wrappers.__name__):  # which take tuples, and JSON has none
        arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    try:
        return wrapper(env, **arguments)
    except (TypeError, ValueError, AssertionError) as err:
        fix = "name arguments that the wrapper takes, with values that it accepts"
        raise BadConfig(f"the wrapper cannot be made so: {err}", where=f"--wrapper {text}", fix=fix) from err
