"""Redact secrets in command lines, URLs and clients' error texts, recognised by the names of their options or keys.

Manifests, writers' notes and error messages may be read by people without access to the storage. docs/howto/cloud.md lists the
names. Counted plurals (`max_tokens`) and a plain `key` are not secrets.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

from offline_cli.import_path import call_of
from offline_cli.storage.providers import BUCKETS

BLANK: Final = "***"
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET: Final = re.compile(
    r"secret|passw|passphrase|credential|apikey|accesskey|privatekey"
    r"|(?:^|_)(?:[a-z]*token|pwd|auth|authorization|bearer|sig|signature|sas|connection_string)(?:_|$)"
    r"|(?:^|_)(?:access|account|api|application|auth|client|customer|encryption|license|private"
    r"|service|session|shared|signing|storage|aws)_key(?:_|$)"
)
_OPTION, _ENV_KWARGS, _WRAPPER = "--storage-option", "--env-kwargs", "--wrapper"
_SHORTEST: Final = 6  # minimum length of a secret that is redacted anywhere: shorter ones occur within other words
_PLAIN_VALUE: Final = re.compile(r"anon|browser|cache|cloud|google_default|true|false|.*\.json")  # gcsfs keywords, and files
_PASSWORDS: Final = (  # groups: the part that stays, the password
    re.compile(rf"\b((?:{'|'.join(sorted(BUCKETS))})://|hf://datasets/)(?!arn:)[^/@:\s]*:([^\s'\"]*)@"),  # keys have slashes
    re.compile(r"(://)[^/@:\s]*:([^/@\s]*(?:@[^/@\s'\"]*)*)@"),
    re.compile(r"(://)(?!arn:)[^/@:\s]*:(?!:|\d+[/?#])([^\s'\"]*)@"),  # not a port and a path
)
_IN_CONNECTION_STRING: Final = re.compile(r"\b((?:AccountKey|SharedAccessSignature)=)([^;\s'\"]+)", re.IGNORECASE)
_IN_QUERY: Final = re.compile(r"([?&#]([\w.%-]+)=)([^&#\s'\"]+)")
_IN_JSON: Final = re.compile(r"""((["'])([\w.-]+)\2\s*:\s*(["']))((?:(?!\4)[^\\]|\\.)*)(?=\4)""")
_FOLDERS: Final = re.compile(
    r"(^|[\s=:,;'\"(\[{])(?:file://)?(?:[A-Za-z]:[\\/]|/)(?![\\/\s])(?:[^'\"\\/]+[\\/]+)+(?=[^'\"\\/])"  # names may hold spaces
)
_LINES: Final = frozenset({"command", "commands"})  # keys whose texts are shell command lines


def looks_secret(name: str) -> bool:
    """Whether a value with this name is secret, in any naming style (camelCase, kebab-case, ...)."""
    return _SECRET.search(re.sub(r"[^a-z0-9]+", "_", _CAMEL.sub("_", name).lower())) is not None


def blanked(text: str) -> str:
    """`text` with passwords in URLs, secrets in query strings and JSON, and keys of connection strings redacted."""
    for pattern in (*_PASSWORDS, _IN_CONNECTION_STRING):
        text = pattern.sub(rf"\1{BLANK}{'@' if pattern in _PASSWORDS else ''}", text)
    text = _IN_QUERY.sub(lambda found: found[1] + BLANK if _is_secret_in_query(found[2]) else found[0], text)
    return _IN_JSON.sub(lambda found: found[1] + BLANK if looks_secret(found[3]) else found[0], text)


def _is_secret_in_query(name: str) -> bool:
    return name.lower() == "key" or looks_secret(name)  # Google's services take their API key as `key`


# ---- values ----


def blanked_values(value: Any) -> Any:
    """JSON values with `***` for values of secret keys; booleans and null stay, because they reveal nothing."""
    if isinstance(value, Mapping):
        return {key: BLANK if _is_secret(key, part) else blanked_values(part) for key, part in value.items()}
    return [blanked_values(part) for part in value] if isinstance(value, list) else value


def _is_secret(key: Any, value: Any) -> bool:
    return looks_secret(str(key)) and value is not None and not isinstance(value, bool)


def blanked_keys(value: Any, within: str = "") -> list[str]:
    """Dotted names of the keys whose values `blanked_values` has redacted."""
    if isinstance(value, list):
        return [name for part in value for name in blanked_keys(part, within)]
    found: list[str] = []
    for key, part in value.items() if isinstance(value, Mapping) else ():
        is_blank = part == BLANK and looks_secret(str(key))
        found += [f"{within}{key}"] if is_blank else blanked_keys(part, f"{within}{key}.")
    return found


def blanked_call(text: str) -> str:
    """`package.module:Class:key=value,...` with `***` for values of secret keys."""
    name, arguments, _ = call_of(text)
    known = blanked_values(arguments)
    if known == arguments:
        return text
    return f"{name}:" + ",".join(f"{key}={value if value == BLANK else json.dumps(value)}" for key, value in known.items())


def without_folders(value: Any, *, is_line: bool = False, mark: str = "") -> Any:
    """JSON values without local folders: `/home/me/a.csv`, anywhere in a text, becomes `a.csv`.

    Relative paths and URLs stay. `is_line`: texts are command lines, as under the keys _LINES. `mark`: the replacement for the
    folders.
    """
    if isinstance(value, Mapping):
        return {key: without_folders(part, is_line=key in _LINES, mark=mark) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(part, is_line=is_line, mark=mark) for part in value]
    if isinstance(value, str) and is_line:
        with suppress(ValueError):  # unbalanced quotes in a caller's text
            return shlex.join(map(without_folders, shlex.split(value)))
    return _FOLDERS.sub(rf"\1{mark}", value) if isinstance(value, str) else value


# ---- command lines ----


def this_command() -> str:
    """The command to record for calls from Python: the program's own arguments are private."""
    return "offline_cli, called from Python"


def blanked_args(args: Sequence[str]) -> tuple[str, ...]:
    """A command line with the values of storage options, secret options and secret environment arguments redacted, and what
    `blanked` redacts.
    """
    return tuple(f"{lead}{_blanked(option, value)}" for lead, option, value in _words(args))


def _words(args: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Split each word: prefix (`--option=`), the option that its value belongs to (or ''), and the value."""
    option = ""
    for arg in args:
        name, mark, value = arg.partition("=")
        if option and (option == _OPTION or not arg.startswith("--")):
            yield "", option, arg
            option = ""
        elif mark and re.fullmatch(r"[\w.-]+", name) and (name in (_OPTION, _ENV_KWARGS, _WRAPPER) or looks_secret(name)):
            yield f"{name}=", name, value
            option = ""
        else:
            yield "", "", arg
            option = arg if arg in (_OPTION, _ENV_KWARGS, _WRAPPER) or (arg.startswith("--") and looks_secret(arg)) else ""


def _blanked(option: str, value: str) -> str:
    known = _of_json(value)
    if option == _OPTION:
        return f"{value.partition('=')[0]}={BLANK}"
    if option == _ENV_KWARGS:
        return blanked(json.dumps(blanked_values(known))) if isinstance(known, dict) else BLANK
    if option == _WRAPPER:
        return blanked_call(value)
    if option:
        return BLANK
    return blanked(json.dumps(blanked_values(known)) if blanked_values(known) != known else value)


def secrets_among(args: Sequence[str]) -> tuple[str, ...]:
    """The secrets in a command line: values of secret options, keys in connection strings, passwords in URLs; longest first."""
    found = set[str]()
    for _, option, value in _words(args):
        if option == _OPTION:
            name, _, text = value.partition("=")
            given = {*_under(name, text), *_under(name, _of_json(text))}
            found |= given | {key for one in given for _, key in _IN_CONNECTION_STRING.findall(one)}
        else:
            known = call_of(value)[1] if option == _WRAPPER else {"" if option == _ENV_KWARGS else option: value}
            queries = (text for _, name, text in _IN_QUERY.findall(value) if _is_secret_in_query(name))
            inner = {*_under("", known), *_under("", _of_json(value)), *_under("", _of_json(value.partition("=")[2])), *queries}
            found |= {one for one in inner if len(one) >= _SHORTEST}
        passwords = (password for pattern in _PASSWORDS for _, password in pattern.findall(value) if password)
        found |= {form for password in passwords for form in (password, unquote(password))}
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def _under(name: str, value: Any) -> Iterator[str]:
    """Texts under secret names, at any depth."""
    if isinstance(value, str) and value and looks_secret(name) and not _PLAIN_VALUE.fullmatch(value):
        yield value
    for key, part in value.items() if isinstance(value, dict) else ():
        yield from _under(key, part)
    for part in value if isinstance(value, list) else ():
        yield from _under("", part)


def _of_json(text: str) -> Any:
    """An option's value parsed as JSON, or None: clients get the parsed value and may repeat it in errors."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
