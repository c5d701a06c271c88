"""Secrets in command lines, URLs and the words of clients, blanked out; refuses to guess: only what says that it is one goes.

What is kept of a command (a manifest's provenance, the note of a writer) and what an error says may be read by more people than
may read the storage.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote

__all__ = ["BLANK", "blanked", "blanked_args", "secrets_among", "this_command"]

BLANK: Final = "***"
_OPTION: Final = "--storage-option"
_SECRET_NAME: Final = re.compile(r"secret|token|passw|credential|sas|_key|connection_string", re.IGNORECASE)
_PLAIN_VALUE: Final = re.compile(r"anon|browser|cache|cloud|google_default|true|false|.*\.json")  # words of gcsfs, and files
_IN_CONNECTION_STRING: Final = re.compile(r"\b(AccountKey|SharedAccessSignature)=([^;\s'\"]+)", re.IGNORECASE)
_IN_BUCKET_URL: Final = re.compile(r"\b(s3a?|gcs|gs|az|abfss?|adl)://(?!arn:)[^/@:\s]*:([^\s'\"]*)@")  # keys have slashes
_IN_URL: Final = re.compile(r"://[^/@:\s]*:([^/@\s]*(?:@[^/@\s'\"]*)*)@")
_IN_TEXT: Final = (
    (_IN_BUCKET_URL, rf"\1://{BLANK}@"),
    (_IN_URL, f"://{BLANK}@"),
    (_IN_CONNECTION_STRING, rf"\1={BLANK}"),
    (
        re.compile(r"([?&](?:sig|(?:x-(?:amz|goog)-)?(?:signature|security-token)|(?:access_)?token)=)[^&\s'\"]+", re.I),
        rf"\1{BLANK}",  # in a URL that is signed
    ),
)


def blanked(text: str) -> str:
    """`text` without passwords in URLs, signatures of URLs, and keys of connection strings."""
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return text


def blanked_args(args: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line without the values of storage options, and without what `blanked` blanks out."""
    pairs = _with_pairs(args)
    return tuple(blanked(arg) if pair is None else f"{lead}{pair.partition('=')[0]}={BLANK}" for arg, lead, pair in pairs)


def secrets_among(args: Sequence[str]) -> tuple[str, ...]:
    """The values of storage options whose names say that they are secret, keys in connection strings, and passwords in URLs;
    longest first."""
    given = [pair.partition("=") for _, _, pair in _with_pairs(args) if pair is not None]
    found = {secret for name, _, value in given for form in (value, _of_json(value)) for secret in _secrets_in(name, form)}
    found |= {part for value in found for name, part in _IN_CONNECTION_STRING.findall(value)}
    found |= {form for arg in args for password in _passwords_in(arg) for form in (password, unquote(password))}
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def _secrets_in(name: str, value: Any) -> Iterator[str]:
    """The text of an option, if its name says that it is secret; of several in one, those whose own names say so."""
    if isinstance(value, dict):
        for inner, part in value.items():
            yield from _secrets_in(inner, part)
    elif isinstance(value, str) and value and _SECRET_NAME.search(name) and not _PLAIN_VALUE.fullmatch(value):
        yield value


def _passwords_in(text: str) -> Iterator[str]:
    """Those of the URLs in it."""
    yield from filter(None, (match[2] for match in _IN_BUCKET_URL.finditer(text)))
    yield from filter(None, (match[1] for match in _IN_URL.finditer(text)))


def _of_json(text: str) -> Any:
    """What an option's text stands for where it is JSON: clients get that, and may repeat it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def this_command() -> str:
    """What started this process, without secrets."""
    return shlex.join(blanked_args(sys.argv))


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
