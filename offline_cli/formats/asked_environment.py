"""Which environment a command plays in: as its caller names it, and as far as data says how that one is made."""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import gymnasium.wrappers

from offline_cli.environments import EnvironmentSpec, check_registered
from offline_cli.errors import BadConfig, UsageError
from offline_cli.import_path import call_of
from offline_cli.storage.blanking import BLANK, blanked, blanked_keys, without_folders

WITHOUT: Final = "none"  # in place of wrappers
NOT_FROM_DATA: Final = {"RecordVideo": "writes files", "HumanRendering": "opens a window"}
PLAIN_TEXT: Final = re.compile(r"[\w +,=()-]*")
CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
OF_A_PLACE: Final = re.compile(r"(?:^|_)(?:paths?|files?|filename|folders?|dirs?|directory|urls?|uri)(?:_|$)", re.IGNORECASE)
LARGEST: Final = 4096  # number that data may give an environment, but for limits of steps: stacks and sizes take memory
PARTS: Final = ("kwargs", "wrappers")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AskedEnvironment:
    """An environment as a caller names it; what he leaves out, data may say."""

    id: str
    kwargs: Mapping[str, Any] | None = None  # None: not given
    wrappers: Sequence[str] | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], *, known: bool = True) -> AskedEnvironment | None:
        """From the options `env`, `env_kwargs` and `wrappers`; None: none is named. `known`: look it up at once.

        Raises UsageError for the others without `env`, UnknownEnvironment, and BadConfig for arguments that are no JSON values,
        or were blanked out.
        """
        env, kwargs, wrappers = options.get("env"), options.get("env_kwargs"), options.get("wrappers")
        if env is None:
            if kwargs is not None or wrappers is not None:
                flag = "--wrapper" if kwargs is None else "--env-kwargs"
                raise UsageError(f"{flag} without --env", where=flag, fix="name the environment: --env ENV")
            return None
        if wrappers is not None and WITHOUT in wrappers:
            if list(wrappers) != [WITHOUT]:
                raise UsageError(f"{WITHOUT} and other wrappers", where="--wrapper", fix=f"leave out --wrapper {WITHOUT}")
            wrappers = ()
        if known:
            check_registered(env)
        return cls(env, None if kwargs is None else _plain(kwargs), wrappers if wrappers is None else tuple(wrappers))

    def chosen(self, declared: Iterable[tuple[str, EnvironmentSpec | None]]) -> tuple[EnvironmentSpec, list[str]]:
        """The environment, with what is not given from the one that data of the same id `declared`, by the data's place; and
        notes on what came from there, and on data of another environment.

        Raises BadConfig, with the flags to give, where data says something that only a user may say, or not one thing.
        """
        known = [(place, spec) for place, spec in declared if spec is not None]
        same = [(place, spec) for place, spec in known if without_folders(spec.id) == without_folders(self.id)]
        others = {spec.id: place for place, spec in known if without_folders(spec.id) != without_folders(self.id)}
        notes = [f"{place} is of {name}, and --env is {self.id}" for name, place in others.items()]
        given: dict[str, Any] = {name: getattr(self, name) for name in PARTS}
        asks = [name for name in PARTS if same and given[name] is None]
        if asks:
            place, said = same[0]
            for other, spec in same:
                apart = {name: name in asks and getattr(spec, name) != getattr(said, name) for name in PARTS}
                if any(apart.values()):
                    fix = f"say in which, for example {said.flags(**apart)}"
                    raise BadConfig(f"the data is of {self.id} made in two ways", where=f"{place} and {other}", fix=fix)
            wrong = {name: reasons for name, reasons in zip(PARTS, refused(said), strict=True) if name in asks and reasons}
            if wrong:
                reasons = [f"{reason}: not taken from data" for part in wrong.values() for reason in part]
                flags = said.flags(**{name: name in wrong for name in PARTS})
                raise BadConfig.of(reasons, where=place, fix=f"if you trust it, give it yourself: {flags}")
            given |= {name: getattr(said, name) for name in asks}
            taken = {name: name in asks and bool(given[name]) for name in PARTS}
            if any(taken.values()):
                notes.append(f"--env {self.id} is made as {place} says: {said.flags(**taken)}")
        return EnvironmentSpec(self.id, given["kwargs"] or {}, tuple(given["wrappers"] or ())), list(map(blanked, notes))

    def among(self, declared: Iterable[tuple[str, EnvironmentSpec | None]]) -> EnvironmentSpec:
        """`chosen`, with the notes logged."""
        found, notes = self.chosen(declared)
        for note in notes:
            _log.warning("note: %s", note)
        return found


def refused(spec: EnvironmentSpec) -> tuple[list[str], list[str]]:
    """Why arguments, and why wrappers of a record that comes from data are not used; both empty: nothing speaks against them.

    Wrappers have to be gymnasium's own by bare name, without those that write files or open windows; arguments numbers, plain
    texts, and lists and objects of these, nothing that could name a file, a URL or a module.
    """
    wrong = []
    for text in spec.wrappers:
        name, arguments, mistakes = call_of(text)
        found = vars(gymnasium.wrappers).get(name)  # what is loaded on demand would be imported by `getattr`
        if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
            wrong.append(f"{text!r} is no wrapper of gymnasium by its bare name")
        elif name in NOT_FROM_DATA:
            wrong.append(f"{text!r} {NOT_FROM_DATA[name]}")
        else:
            wrong += [f"{text!r}: {mistake}" for mistake in (*mistakes, *_not_plain(arguments))]
    return list(_not_plain(spec.kwargs)), wrong


def _not_plain(value: Any, name: str = "") -> Iterator[str]:
    """What in arguments could name a place or code."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not PLAIN_TEXT.fullmatch(str(key)):
                yield f"{key!r} is no plain name"
            yield from _not_plain(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for part in value:
            yield from _not_plain(part, name)
    elif value == BLANK:
        yield f"the value of {name} was blanked out"
    elif name == "render_mode" and value == "human":
        yield "render_mode = 'human' opens windows"
    elif isinstance(value, int | float) and not name.endswith("_steps") and abs(value) > LARGEST:
        yield f"{name} = {value} is beyond {LARGEST}, and may cost memory or time"
    elif isinstance(value, str):
        words = CAMEL.sub("_", name.replace(".", "_"))
        if OF_A_PLACE.search(words) or not PLAIN_TEXT.fullmatch(value):
            yield f"{name} = {value!r} could name a path, a URL or a module"


def _plain(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """`kwargs` as a manifest will hold them."""
    try:
        plain: Mapping[str, Any] = json.loads(json.dumps(dict(kwargs), allow_nan=False))
    except (TypeError, ValueError) as err:
        fix = "numbers, texts, lists and objects; for anything else write a function and name it python:module:make_env"
        raise BadConfig(f"no JSON values: {err}", where="--env-kwargs", fix=fix) from err
    unknown = blanked_keys(plain)
    if unknown:
        asked = json.dumps({**plain, **{name.partition(".")[0]: "..." for name in unknown}})
        what = f"the values of {', '.join(unknown)} were blanked out where they are from, and are not known"
        raise BadConfig(what, where="--env-kwargs", fix=f"give them again: --env-kwargs {shlex.quote(asked)}")
    return plain
