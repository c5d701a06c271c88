"""Environments by name: a gymnasium id, `module:EnvId`, or a class or function, `python:package.module:make_env`.

One place for every command that takes `--env`. Code is imported because the caller names it, never because a dataset, manifest
or run folder does (`formats/opening.py` says what of a record from there is used). It may also lie in the current folder, which
is searched last, so that it hides no installed package, or in a file named by its path (`my_envs.py:make_env`).

Whatever an environment raises while it is imported, made or closed is BadData with its name; a package that it lacks is
MissingPackage; a name that gymnasium does not know is UnknownEnvironment.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, TracebackType
from typing import Any, Self

import gymnasium as gym
import gymnasium.wrappers

from offline_cli.errors import BadConfig, BadData, MissingPackage, OfflineCliError, UnknownEnvironment
from offline_cli.games import Game, common_spaces, game_of
from offline_cli.import_path import PYTHON, call_of, module_named, named_object, names_file, no_module
from offline_cli.spaces import Space, check_supported, declared_spaces

__all__ = ["Env", "Environment", "EnvironmentSpec", "check_registered", "open_environment", "spaces_of_env"]

Env = gym.Env[Any, Any]
ATARI, ATARI_IDS = "ale_py", "ALE/"
PETTINGZOO = "pettingzoo"
WRAPPER_FORM = "package.module:Class, or the name of one of gymnasium.wrappers"


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

    def __init__(
        self,
        name: str,
        make: Callable[[], Any],
        spec: EnvironmentSpec | None = None,
    ) -> None:
        self.name, self.spec = name, EnvironmentSpec(name) if spec is None else spec
        self._make = make
        self._singles: list[Env] = [self._made()]
        first = self._singles[0]
        self.agents = first.spaces_of if isinstance(first, Game) else None  # observations and actions by agent, of several
        try:
            self.observation_space, self.action_space = declared_spaces(first, name)
            check_supported(self.observation_space, where=f"observations of {name}")
            check_supported(self.action_space, where=f"actions of {name}")
        except Exception:
            self.close()
            raise

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
    Raises UnknownEnvironment, with near matches, UnsupportedSpace, MissingPackage for what it needs, BadConfig for kwargs that
    it does not take and, naming all mistakes, for wrappers, and BadData where its code raises.
    """
    given, around = dict(kwargs or {}), _wrappers(wrappers)
    told = EnvironmentSpec(name, given, tuple(wrappers))
    spec = _maker(name) if name.startswith(PYTHON) else _spec(name)
    if not isinstance(spec, gym.envs.registration.EnvSpec):
        return Environment(name, _fitted_out(name, spec, given, around), told)
    id_ = spec.id  # its module has been imported
    # The checker prints about style and slows each step; the caller checks what comes back against the spaces.
    make = _fitted_out(name, lambda **own: gym.make(id_, disable_env_checker=True, **own), given, around)
    return Environment(name, make, told)


def _fitted_out(name: str, make: Callable[..., Any], kwargs: dict[str, Any], wrappers: list[Any]) -> Callable[[], Any]:
    def made() -> Any:
        try:
            env = make(**kwargs)
        except TypeError as err:
            if not kwargs:
                raise
            fix = "name arguments that the environment takes, with values that it accepts"
            raise BadConfig(f"{name} cannot be made with {kwargs}: {err}", where="--env-kwargs", fix=fix) from err
        for wrapper in wrappers:
            env = wrapper(env)
        _check_keeps_no_moments(env, name)
        return env

    return made


def _check_keeps_no_moments(env: Any, name: str) -> None:
    """Raise BadConfig for a gymnasium wrapper whose running statistics change what each copy gives, and are saved nowhere."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, (gym.wrappers.NormalizeObservation, gym.wrappers.NormalizeReward)) and env.update_running_mean:
            kind = type(env).__name__
            what = f"{kind} goes on changing what {name} gives by statistics of its own in each copy, which are not saved"
            fix = (
                "leave it out, and train through the piece mean_std_filter; or code that sets its update_running_mean to False"
            )
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
        _spec(name)


def _spec(name: str) -> Any:
    """gymnasium's record of an id; or the class or function of a module in which no such id is registered."""
    module, colon, id_ = name.rpartition(":")
    imported = _imported(module, name) if colon else None
    if id_.startswith(ATARI_IDS):
        _register_atari(name)
    try:
        return gym.spec(id_)
    except gym.error.Error as err:
        if callable(made := getattr(imported, id_, None)):
            return made
        known = _near(id_, [*gym.registry, *(vars(imported) if imported else ())])
        why = f"the module {module} neither registers {id_!r} nor has such a class or function"
        why = why if colon and isinstance(err, (gym.error.NameNotFound, gym.error.NamespaceNotFound)) else str(err)
        raise _unknown(name, why, [f"{module}{colon}{match}" for match in known]) from err


def _register_atari(name: str) -> None:
    """Import what registers the ids of Atari's games. Raises MissingPackage."""
    try:
        importlib.import_module(ATARI)
    except ImportError as err:
        fix = "pip install 'offline-cli[atari]'"
        raise MissingPackage(f"{name} needs a package: {err}", where=f"--env {name}", fix=fix) from err


def _near(name: str, known: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(name, known, n=3, cutoff=0.5)


def _maker(name: str) -> Callable[[], Any]:
    """The class or function that `python:package.module:attribute` names."""
    form = "name a class or function: python:package.module:make_env"
    try:
        found = named_object(name.removeprefix(PYTHON), where=f"--env {name}", form=form, raised=BadData)
    except BadConfig as err:
        if isinstance(err.__cause__, ModuleNotFoundError) and _lacks_pettingzoo(err.__cause__):
            raise _missing(name, err.__cause__) from err
        raise UnknownEnvironment(f"no environment {name!r}: {err.what}", where=err.where, fix=err.fix) from err
    if not callable(found):
        raise _unknown(name, f"it is {type(found).__name__}, not a function that makes an environment")
    make: Callable[[], Any] = found
    return make


def _wrappers(texts: Sequence[str]) -> list[Any]:
    """What `--wrapper` names, with its arguments. Raises BadConfig with all mistakes."""
    made, wrong = [], list[BadConfig]()
    for text in texts:
        name, arguments, mistakes = call_of(text)
        try:
            path = name.removeprefix(PYTHON) if ":" in name else f"{gymnasium.wrappers.__name__}:{name}"
            found = named_object(path, where=f"--wrapper {text}", form=WRAPPER_FORM, raised=BadData)
            if mistakes:
                raise BadConfig("; ".join(mistakes), where=f"--wrapper {text}", fix="--wrapper NAME:key=value,...")
        except BadConfig as err:
            wrong.append(err)
        else:
            made.append(_called(text, found, arguments))
    if len(wrong) > 1:
        texts = [f"{err.what} ({err.fix})" for err in wrong]
        raise BadConfig.of(texts, where="; ".join(err.where for err in wrong), fix="correct each --wrapper")
    if wrong:
        raise wrong[0]
    return made


def _called(text: str, found: Any, arguments: Mapping[str, Any]) -> Callable[[Any], Any]:
    if getattr(found, "__module__", "").startswith(gymnasium.wrappers.__name__):  # which take tuples, and JSON has none
        arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}

    def made(env: Any) -> Any:
        try:
            return partial(found, **arguments)(env)
        except (TypeError, ValueError, AssertionError) as err:
            fix = "name arguments that the wrapper takes, with values that it accepts"
            raise BadConfig(f"the wrapper cannot be made so: {err}", where=f"--wrapper {text}", fix=fix) from err

    return made


def _imported(module: str, name: str) -> ModuleType:
    if not module or (module.startswith(".") and not names_file(module)):
        raise _unknown(name, "it names no module")
    try:
        return module_named(module)
    except ModuleNotFoundError as err:
        if _lacks_pettingzoo(err):
            raise _missing(name, err) from err
        if said := no_module(module, err):
            raise _unknown(name, said) from err
        raise _missing(name, err) from err
    except (Exception, SystemExit) as err:
        raise _raised(name, f"importing {module}", err) from err


def _lacks_pettingzoo(error: ModuleNotFoundError) -> bool:
    """Whether a game of PettingZoo is asked for, which is not installed."""
    return str(error.name).partition(".")[0] == PETTINGZOO and importlib.util.find_spec(PETTINGZOO) is None


def _guarded(name: str, doing: str, call: Callable[[], Any]) -> Any:
    """What `call` gives. Raises MissingPackage or BadData in place of what it raises."""
    try:
        return call()
    except OfflineCliError:
        raise
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as err:
        raise _missing(name, err) from err
    except Exception as err:
        raise _raised(name, f"{doing} {name}", err) from err


def _unknown(name: str, why: str, near: list[str] | None = None) -> UnknownEnvironment:
    forms = "a registered id (python -c 'import gymnasium; gymnasium.pprint_registry()'), module:EnvId, "
    forms += "or python:package.module:make_env"
    fix = f"did you mean {' or '.join(near)}?" if near else forms
    return UnknownEnvironment(f"no environment {name!r}: {why}", where=f"--env {name}", fix=fix, details={"near": near or []})


def _missing(name: str, error: ImportError | gym.error.Error) -> MissingPackage:
    said = re.search(r"pip install [^`]+", str(error))
    package = getattr(error, "name", None) or "what the environment needs"
    package = package.partition(".")[0]
    fix = said[0] if said else "pip install 'offline-cli[pettingzoo]'" if package == PETTINGZOO else f"pip install {package}"
    return MissingPackage(f"{name} needs a package: {error}", where=f"--env {name}", fix=fix)


def _raised(name: str, doing: str, error: BaseException) -> BadData:
    return BadData(f"{doing} raised {error!r}", where=f"--env {name}", fix="check the environment by itself, in Python")
