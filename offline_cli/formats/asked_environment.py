"""The environment of a command: named by the caller, completed with arguments and wrappers recorded in the data."""

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

WITHOUT: Final = "none"  # value of --wrapper for no wrappers
NOT_FROM_DATA: Final = {"RecordVideo": "writes files", "HumanRendering": "opens a window"}
PLAIN_TEXT: Final = re.compile(r"[\w +,=()-]*")
CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
OF_A_PLACE: Final = re.compile(r"(?:^|_)(?:paths?|files?|filename|folders?|dirs?|directory|urls?|uri)(?:_|$)", re.IGNORECASE)
LARGEST: Final = 4096  # largest number accepted from data, except step limits: stacks and sizes take memory
PARTS: Final = ("kwargs", "wrappers")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AskedEnvironment:
    """An environment as the caller names it; data may provide what is not given."""

    id: str
    kwargs: Mapping[str, Any] | None = None  # None: not given
    wrappers: Sequence[str] | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], *, known: bool = True) -> AskedEnvironment | None:
        """From the options `env`, `env_kwargs` and `wrappers`; None without `env`. `known`: check that the id is registered.

        Raises UsageError for the other options without `env`, UnknownEnvironment, and BadConfig for arguments that are not JSON
        values, or are redacted.
        """
        env, kwargs, wrappers = options.get("env"), options.get("env_kwargs"), options.get("wrappers")
        if env is None:
            if kwargs is not None or wrappers is not None:
                flag = "--wrapper" if kwargs is None else "--env-kwargs"
                raise UsageError(f"{flag} without --env", where=flag, fix="name the environment: --env ENV")
            return None
        if wrappers is not None and WITHOUT in wrappers:
            if list(wrappers) != [WITHOUT]:
                what = f"--wrapper {WITHOUT} excludes other wrappers"
                raise UsageError(what, where="--wrapper", fix=f"remove --wrapper {WITHOUT}")
            wrappers = ()
        if known:
            check_registered(env)
        return cls(env, None if kwargs is None else _plain(kwargs), wrappers if wrappers is None else tuple(wrappers))

    def chosen(self, declared: Iterable[tuple[str, EnvironmentSpec | None]]) -> tuple[EnvironmentSpec, list[str]]:
        """Complete the environment from those that data with the same id `declared` (by place of the data); also return notes
        about the parts taken from data, and about data of other environments.

        Raises BadConfig, with the flags to give, if the data's values are unsafe or contradict each other.
        """
        known = [(place, spec) for place, spec in declared if spec is not None]
        same = [(place, spec) for place, spec in known if without_folders(spec.id) == without_folders(self.id)]
        others = {spec.id: place for place, spec in known if without_folders(spec.id) != without_folders(self.id)}
        notes = [f"{place} was recorded in {name}, but --env is {self.id}" for name, place in others.items()]
        given: dict[str, Any] = {name: getattr(self, name) for name in PARTS}
        asks = [name for name in PARTS if same and given[name] is None]
        if asks:
            place, said = same[0]
            for other, spec in same:
                apart = {name: name in asks and getattr(spec, name) != getattr(said, name) for name in PARTS}
                if any(apart.values()):
                    fix = f"choose one, for example {said.flags(**apart)}"
                    what = f"the data was recorded in {self.id} with different arguments or wrappers"
                    raise BadConfig(what, where=f"{place} and {other}", fix=fix)
            wrong = {name: reasons for name, reasons in zip(PARTS, refused(said), strict=True) if name in asks and reasons}
            if wrong:
                reasons = [f"{reason}: not accepted from data" for part in wrong.values() for reason in part]
                flags = said.flags(**{name: name in wrong for name in PARTS})
                raise BadConfig.of(reasons, where=place, fix=f"if you trust it, give it explicitly: {flags}")
            given |= {name: getattr(said, name) for name in asks}
            taken = {name: name in asks and bool(given[name]) for name in PARTS}
            if any(taken.values()):
                notes.append(f"--env {self.id} uses the settings of {place}: {said.flags(**taken)}")
        return EnvironmentSpec(self.id, given["kwargs"] or {}, tuple(given["wrappers"] or ())), list(map(blanked, notes))

    def among(self, declared: Iterable[tuple[str, EnvironmentSpec | None]]) -> EnvironmentSpec:
        """Like `chosen`, but log the notes."""
        found, notes = self.chosen(declared)
        for note in notes:
            _log.warning("note: %s", note)
        return found


def refused(spec: EnvironmentSpec) -> tuple[list[str], list[str]]:
    """Why arguments, and why wrappers, of an environment recorded in data are unsafe; both empty if they are safe.

    Wrappers must be gymnasium's own by bare name, except those that write files or open windows; arguments must be numbers,
    plain text, and lists and objects of these, without anything that could name a file, a URL or a module.
    """
    wrong = []
    for text in spec.wrappers:
        name, arguments, mistakes = call_of(text)
        found = vars(gymnasium.wrappers).get(name)  # not `getattr`, which would import lazy ones
        if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
            wrong.append(f"{text!r} is not a gymnasium wrapper by bare name")
        elif name in NOT_FROM_DATA:
            wrong.append(f"{text!r} {NOT_FROM_DATA[name]}")
        else:
            wrong += [f"{text!r}: {mistake}" for mistake in (*mistakes, *_not_plain(arguments))]
    return list(_not_plain(spec.kwargs)), wrong


def _not_plain(value: Any, name: str = "") -> Iterator[str]:
    """Describe arguments that could name a path or code."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not PLAIN_TEXT.fullmatch(str(key)):
                yield f"{key!r} is not a plain name"
            yield from _not_plain(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for part in value:
            yield from _not_plain(part, name)
    elif value == BLANK:
        yield f"the value of {name} is redacted"
    elif name == "render_mode" and value == "human":
        yield "render_mode = 'human' opens windows"
    elif isinstance(value, int | float) and not name.endswith("_steps") and abs(value) > LARGEST:
        yield f"{name} = {value} exceeds {LARGEST} and may cost memory or time"
    elif isinstance(value, str):
        words = CAMEL.sub("_", name.replace(".", "_"))
        if OF_A_PLACE.search(words) or not PLAIN_TEXT.fullmatch(value):
            yield f"{name} = {value!r} could name a path, a URL or a module"


def _plain(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """`kwargs` as JSON values, as manifests store them."""
    try:
        plain: Mapping[str, Any] = json.loads(json.dumps(dict(kwargs), allow_nan=False))
    except (TypeError, ValueError) as err:
        fix = "use numbers, text, lists and objects; for anything else write a function and name it python:module:make_env"
        raise BadConfig(f"not JSON values: {err}", where="--env-kwargs", fix=fix) from err
    unknown = blanked_keys(plain)
    if unknown:
        asked = json.dumps({**plain, **{name.partition(".")[0]: "..." for name in unknown}})
        what = f"the values of {', '.join(unknown)} are redacted in the recording"
        raise BadConfig(what, where="--env-kwargs", fix=f"give them explicitly: --env-kwargs {shlex.quote(asked)}")
    return plain
