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

from offline_cli.files.providers import buckets
from offline_cli.import_path import call_of

__all__ = [
    "BLANK",
    "blanked",
    "blanked_args",
    "blanked_call",
    "blanked_keys",
    "blanked_values",
    "looks_secret",
    "secrets_among",
    "this_command",
    "without_folders",
]

BLANK: Final = "***"
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET: Final = re.compile(
    r"secret|passw|passphrase|credential|apikey|accesskey|privatekey"
    r"|(?:^|_)(?:[a-z]*token|pwd|auth|authorization|bearer|sig|signature|sas|connection_string)(?:_|$)"
    r"|(?:^|_)(?:access|account|api|application|auth|client|customer|encryption|license|private"
    r"|service|session|shared|signing|storage|aws)_key(?:_|$)"
)

_OPTION: Final = "--storage-option"
_ENV_KWARGS: Final = "--env-kwargs"
_WRAPPER: Final = "--wrapper"
SHORTEST: Final = 6  # letters of a text that is blanked wherever it stands: a shorter one is part of other words
_CALLED: Final = "offline_cli, called from Python"
_PLAIN_VALUE: Final = re.compile(r"anon|browser|cache|cloud|google_default|true|false|.*\.json")  # words of gcsfs, and files
_IN_CONNECTION_STRING: Final = re.compile(r"\b(AccountKey|SharedAccessSignature)=([^;\s'\"]+)", re.IGNORECASE)
_IN_BUCKET_URL: Final = re.compile(rf"\b({'|'.join(sorted(buckets()))})://(?!arn:)[^/@:\s]*:([^\s'\"]*)@")  # keys have slashes
_IN_URL: Final = re.compile(r"://[^/@:\s]*:([^/@\s]*(?:@[^/@\s'\"]*)*)@")
_WITH_SLASH: Final = re.compile(r"://(?!arn:)[^/@:\s]*:(?!:|\d+[/?#])([^\s'\"]*)@")  # a port and a path are no password
_IN_TEXT: Final = (
    (_IN_BUCKET_URL, rf"\1://{BLANK}@"),
    (_IN_URL, f"://{BLANK}@"),
    (_WITH_SLASH, f"://{BLANK}@"),
    (_IN_CONNECTION_STRING, rf"\1={BLANK}"),
)
_FOLDERS: Final = re.compile(
    r"(^|[\s=:,;'\"(\[{])(?:file://)?(?:[A-Za-z]:[\\/]|/)(?![\\/\s])(?:[^'\"\\/]+[\\/]+)+(?=[^'\"\\/])"  # names may hold spaces
)
_LINES: Final = frozenset({"command", "commands"})  # keys of command lines, as a shell takes them
_IN_QUERY: Final = re.compile(r"([?&#]([\w.%-]+)=)([^&#\s'\"]+)")
_IN_JSON: Final = re.compile(r"""((["'])([\w.-]+)\2\s*:\s*(["']))((?:(?!\4)[^\\]|\\.)*)(?=\4)""")


def looks_secret(name: str) -> bool:
    """Whether a value of this name is secret, however the words of the name are joined."""
    return _SECRET.search(re.sub(r"[^a-z0-9]+", "_", _CAMEL.sub("_", name).lower())) is not None


def blanked_values(value: Any) -> Any:
    """Plain JSON values with `***` for the value of such a key; booleans and null stay, because they reveal nothing."""
    if isinstance(value, Mapping):
        return {key: _blanked_under(key, part) for key, part in value.items()}
    return [blanked_values(part) for part in value] if isinstance(value, list) else value


def _blanked_under(key: Any, value: Any) -> Any:
    return BLANK if looks_secret(str(key)) and value is not None and not isinstance(value, bool) else blanked_values(value)


def blanked_call(text: str) -> str:
    """`package.module:Class:key=value,...` with `***` for the values of such keys; unchanged where there is none."""
    name, arguments, _ = call_of(text)
    known = blanked_values(arguments)
    if known == arguments:
        return text
    return f"{name}:" + ",".join(f"{key}={value if value == BLANK else json.dumps(value)}" for key, value in known.items())


def blanked_keys(value: Any, within: str = "") -> list[str]:
    """Dotted names of the keys whose values `blanked_values` has blanked out."""
    if isinstance(value, list):
        return [name for part in value for name in blanked_keys(part, within)]
    found: list[str] = []
    for key, part in value.items() if isinstance(value, Mapping) else ():
        is_blank = part == BLANK and looks_secret(str(key))
        found += [f"{within}{key}"] if is_blank else blanked_keys(part, f"{within}{key}.")
    return found


def blanked(text: str) -> str:
    """`text` without passwords in URLs, secret parts of query strings and of JSON, and keys of connection strings."""
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    text = _IN_QUERY.sub(lambda found: found[1] + BLANK if _is_secret_in_query(found[2]) else found[0], text)
    return _IN_JSON.sub(lambda found: found[1] + BLANK if looks_secret(found[3]) else found[0], text)


def _is_secret_in_query(name: str) -> bool:
    return name.lower() == "key" or looks_secret(name)  # Google's services take one of that name


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


def blanked_args(args: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line without the values of storage options, of options whose names look secret and of arguments
    of environments, which a manifest stores elsewhere; and without what `blanked` blanks out.
    """
    words, before = list[str](), ""
    for arg, lead, pair in _with_pairs(args):
        words.append(f"{lead}{pair.partition('=')[0]}={BLANK}" if pair is not None else _blanked_word(arg, before))
        before = arg
    return tuple(words)


def _blanked_word(word: str, before: str) -> str:
    if before == _ENV_KWARGS:
        return _emptied(word)
    name, mark, value = word.partition("=")
    if mark and name == _ENV_KWARGS:
        return f"{name}={_emptied(value)}"
    if before == _WRAPPER:
        return blanked_call(word)
    if mark and name == _WRAPPER:
        return f"{name}={blanked_call(value)}"
    if _is_secret_option(before) and not word.startswith("--"):
        return BLANK
    if mark and re.fullmatch(r"[\w.-]+", name) and looks_secret(name):
        return f"{name}={BLANK}"
    known = _of_json(word)
    return blanked(json.dumps(blanked_values(known)) if blanked_values(known) != known else word)


def _emptied(text: str) -> str:
    """The names in a JSON object, without their values."""
    known = _of_json(text)
    return json.dumps(dict.fromkeys(known, BLANK)) if isinstance(known, dict) else BLANK


def _is_secret_option(word: str) -> bool:
    return word.startswith("--") and "=" not in word and looks_secret(word)


def secrets_among(args: Sequence[str]) -> tuple[str, ...]:
    """The values of storage options whose names say that they are secret, keys in connection strings, and passwords in URLs;
    the longest first."""
    given = [pair.partition("=") for _, _, pair in _with_pairs(args) if pair is not None]
    found = {secret for name, _, value in given for form in (value, _of_json(value)) for secret in _secrets_in(name, form)}
    found |= {part for value in found for name, part in _IN_CONNECTION_STRING.findall(value)}
    found |= {form for arg in args for password in _passwords_in(arg) for form in (password, unquote(password))}
    words = zip(_with_pairs(args), ("", *args), strict=False)
    found |= {
        secret
        for (word, _, pair), before in words
        if pair is None
        for secret in _secrets_of_word(word, before)
        if len(secret) >= SHORTEST
    }
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def _secrets_in(name: str, value: Any) -> Iterator[str]:
    """The text of an option with a secret name; of several in one, those with secret names."""
    if isinstance(value, dict):
        for inner, part in value.items():
            yield from _secrets_in(inner, part)
    elif isinstance(value, str) and value and looks_secret(name) and not _PLAIN_VALUE.fullmatch(value):
        yield value


def _secrets_of_word(word: str, before: str) -> Iterator[str]:
    """The secrets in a word, by their names: of an option, in a query string, in JSON."""
    name, mark, value = word.partition("=")
    if _is_secret_option(before) and not word.startswith("--"):
        yield word
    if mark and value and looks_secret(name) and re.fullmatch(r"[\w.-]+", name):
        yield value
    if before == _WRAPPER or name == _WRAPPER:
        yield from _secrets_under(call_of(word.removeprefix(f"{_WRAPPER}="))[1])
    yield from (found[3] for found in _IN_QUERY.finditer(word) if _is_secret_in_query(found[2]))
    for text in (word, value):
        yield from _secrets_under(_of_json(text))


def _secrets_under(known: Any) -> Iterator[str]:
    """Texts under secret keys."""
    for key, part in known.items() if isinstance(known, dict) else ():
        if isinstance(part, str) and part and looks_secret(key):
            yield part
        yield from _secrets_under(part)
    for part in known if isinstance(known, list) else ():
        yield from _secrets_under(part)


def _passwords_in(text: str) -> Iterator[str]:
    """Those of the URLs in it."""
    yield from filter(None, (match[2] for match in _IN_BUCKET_URL.finditer(text)))
    yield from filter(None, (match[1] for match in _IN_URL.finditer(text)))
    yield from filter(None, (match[1] for match in _WITH_SLASH.finditer(text)))


def _of_json(text: str) -> Any:
    """The value of an option's text where it is JSON: clients get it, and may repeat it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def this_command() -> str:
    """The command to record where a program calls us: its own arguments are private."""
    return _CALLED


def _with_pairs(args: Sequence[str]) -> Iterator[tuple[str, str, str | None]]:
    """Each word; of a storage option, what stands before its KEY=VALUE, and that."""
    pair_follows = False
    for arg in args:
        if pair_follows:
            yield arg, "", arg
        elif arg.startswith(_OPTION + "="):
            yield arg, f"{_OPTION}=", arg[len(_OPTION) + 1 :]
        else:
            yield arg, "", None
        pair_follows = not pair_follows and arg == _OPTION
