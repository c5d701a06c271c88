"""Blanks secrets in command lines, URLs and error texts of clients, by the names beside them.

More people may read what is kept of a command (a manifest's provenance, a writer's note) and what an error says than may read
the storage. docs/storage.md lists the names. A plural of things that are counted (`max_tokens`) and a plain `key` are not
secrets.
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
_SHORTEST: Final = 6  # letters of a text that is blanked wherever it stands: a shorter one is part of other words
_PLAIN_VALUE: Final = re.compile(r"anon|browser|cache|cloud|google_default|true|false|.*\.json")  # words of gcsfs, and files
_PASSWORDS: Final = (  # groups: what stays, the password
    re.compile(rf"\b((?:{'|'.join(sorted(BUCKETS))})://)(?!arn:)[^/@:\s]*:([^\s'\"]*)@"),  # keys have slashes
    re.compile(r"(://)[^/@:\s]*:([^/@\s]*(?:@[^/@\s'\"]*)*)@"),
    re.compile(r"(://)(?!arn:)[^/@:\s]*:(?!:|\d+[/?#])([^\s'\"]*)@"),  # a port and a path are no password
)
_IN_CONNECTION_STRING: Final = re.compile(r"\b((?:AccountKey|SharedAccessSignature)=)([^;\s'\"]+)", re.IGNORECASE)
_IN_QUERY: Final = re.compile(r"([?&#]([\w.%-]+)=)([^&#\s'\"]+)")
_IN_JSON: Final = re.compile(r"""((["'])([\w.-]+)\2\s*:\s*(["']))((?:(?!\4)[^\\]|\\.)*)(?=\4)""")
_FOLDERS: Final = re.compile(
    r"(^|[\s=:,;'\"(\[{])(?:file://)?(?:[A-Za-z]:[\\/]|/)(?![\\/\s])(?:[^'\"\\/]+[\\/]+)+(?=[^'\"\\/])"  # names may hold spaces
)
_LINES: Final = frozenset({"command", "commands"})  # keys of command lines, as a shell takes them


def looks_secret(name: str) -> bool:
    """Whether a value of this name is secret, however the words of the name are joined."""
    return _SECRET.search(re.sub(r"[^a-z0-9]+", "_", _CAMEL.sub("_", name).lower())) is not None


def blanked(text: str) -> str:
    """`text` without passwords in URLs, secret parts of query strings and of JSON, and keys of connection strings."""
    for pattern in (*_PASSWORDS, _IN_CONNECTION_STRING):
        text = pattern.sub(rf"\1{BLANK}{'@' if pattern in _PASSWORDS else ''}", text)
    text = _IN_QUERY.sub(lambda found: found[1] + BLANK if _is_secret_in_query(found[2]) else found[0], text)
    return _IN_JSON.sub(lambda found: found[1] + BLANK if looks_secret(found[3]) else found[0], text)


def _is_secret_in_query(name: str) -> bool:
    return name.lower() == "key" or looks_secret(name)  # Google's services take one of that name


# ---- values ----


def blanked_values(value: Any) -> Any:
    """Plain JSON values with `***` for the value of such a key; booleans and null stay, because they reveal nothing."""
    if isinstance(value, Mapping):
        return {key: BLANK if _is_secret(key, part) else blanked_values(part) for key, part in value.items()}
    return [blanked_values(part) for part in value] if isinstance(value, list) else value


def _is_secret(key: Any, value: Any) -> bool:
    return looks_secret(str(key)) and value is not None and not isinstance(value, bool)


def blanked_keys(value: Any, within: str = "") -> list[str]:
    """Dotted names of the keys whose values `blanked_values` has blanked out."""
    if isinstance(value, list):
        return [name for part in value for name in blanked_keys(part, within)]
    found: list[str] = []
    for key, part in value.items() if isinstance(value, Mapping) else ():
        is_blank = part == BLANK and looks_secret(str(key))
        found += [f"{within}{key}"] if is_blank else blanked_keys(part, f"{within}{key}.")
    return found


def blanked_call(text: str) -> str:
    """`package.module:Class:key=value,...` with `***` for the values of such keys; unchanged where there is none."""
    name, arguments, _ = call_of(text)
    known = blanked_values(arguments)
    if known == arguments:
        return text
    return f"{name}:" + ",".join(f"{key}={value if value == BLANK else json.dumps(value)}" for key, value in known.items())


def without_folders(value: Any, *, is_line: bool = False, mark: str = "") -> Any:
    """Plain JSON values without the folders of this machine: `/home/me/a.csv`, wherever it stands in a text, becomes `a.csv`.

    Relative paths and URLs stay as they were given. `is_line`: texts are command lines, as those under _LINES are. `mark`:
    what is left in the folders' place.
    """
    if isinstance(value, Mapping):
        return {key: without_folders(part, is_line=key in _LINES, mark=mark) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(part, is_line=is_line, mark=mark) for part in value]
    if isinstance(value, str) and is_line:
        with suppress(ValueError):  # a caller's own, with a quote that does not end
            return shlex.join(map(without_folders, shlex.split(value)))
    return _FOLDERS.sub(rf"\1{mark}", value) if isinstance(value, str) else value


# ---- command lines ----


def this_command() -> str:
    """The command to record where a program calls us: its own arguments are private."""
    return "offline_cli, called from Python"


def blanked_args(args: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line without the values of storage options, of options whose names look secret and of arguments
    of environments, which a manifest stores elsewhere; and without what `blanked` blanks out.
    """
    return tuple(f"{lead}{_blanked(option, value)}" for lead, option, value in _words(args))


def _words(args: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Each word: what comes before its value (`--option=`), the option that the value is of (or none), and the value."""
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
        return json.dumps(dict.fromkeys(known, BLANK)) if isinstance(known, dict) else BLANK
    if option == _WRAPPER:
        return blanked_call(value)
    if option:
        return BLANK
    return blanked(json.dumps(blanked_values(known)) if blanked_values(known) != known else value)


def secrets_among(args: Sequence[str]) -> tuple[str, ...]:
    """The values of options whose names say that they are secret, keys in connection strings, and passwords in URLs; the
    longest first.
    """
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
    """Texts whose names look secret, however deep."""
    if isinstance(value, str) and value and looks_secret(name) and not _PLAIN_VALUE.fullmatch(value):
        yield value
    for key, part in value.items() if isinstance(value, dict) else ():
        yield from _under(key, part)
    for part in value if isinstance(value, list) else ():
        yield from _under("", part)


def _of_json(text: str) -> Any:
    """The value of an option's text where it is JSON: clients get it, and may repeat it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
