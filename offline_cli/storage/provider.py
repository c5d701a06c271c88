"""What a storage provider is to us: one record with all that differs between S3, Google's storage, Azure and others.

A package adds a provider by registering such a record under the entry points `offline_cli.providers`, once for each scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

__all__ = ["Fault", "InnerOptions", "Provider"]

Names: TypeAlias = "Callable[[], frozenset[str] | None]"
"""Gives the names that a library takes, importing it; None: it takes any."""


class Fault(Enum):
    """What a provider means by an error. `provider_errors` has the words for each."""

    NO_BUCKET = "no bucket"
    NO_CREDENTIALS = "no credentials"
    UNKNOWN_KEY = "unknown key"
    WRONG_SECRET = "wrong secret"  # noqa: S105  what a provider says
    EXPIRED = "expired"
    WRONG_REGION = "wrong region"
    BAD_NAME = "bad name"
    WRONG_CLOCK = "wrong clock"
    DENIED = "denied"
    ANONYMOUS = "anonymous"
    BUSY = "busy"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class InnerOptions:
    """An option that a client hands on to the library below it, such as `client_kwargs`: a mapping of names to values."""

    names: Names
    kinds: Mapping[str, tuple[type, ...]] | None = None  # that values may be of, "" for names not listed; None: any
    near: Mapping[str, str] = field(default_factory=dict)  # what people write, and what it is called here
    repeats_options: bool = False  # whether a name here may be an option of the client too, and has to be equal then


@dataclass(frozen=True, slots=True, eq=False)
class Provider:
    """Everything about one kind of storage that is not the same for all. Fields left out are those of a plain fsspec client."""

    name: str
    schemes: tuple[str, ...]  # of its URLs
    filesystem: str = ""  # "package.module.Class" of fsspec's kind; empty: fsspec knows one for the scheme
    client: frozenset[str] = (
        frozenset()
    )  # top-level packages of the client: their errors are the storage's, their logs are quiet
    extra: str = ""  # the extra of ours that installs the client; empty: it comes with us, or the error of its import says how
    set_up: str = "its credentials"  # how credentials are given, after "set"

    # ---- names ----
    container: str = ""  # what the first part of a URL is called ("bucket"); empty: URLs may begin with anything
    account_after_at: bool = False  # container@account is a name, and no user

    # ---- what it can do ----
    serves_ranges: bool = False  # ranges of bytes, with `size` in what its client's `info` and listings say
    has_folders: bool = True  # by themselves; in object stores they are only prefixes of names
    creates_only: bool = False  # its client's pipe_file(mode="create") fails where a file is
    forgets_uploads: bool = False  # that were never completed, by itself
    version_tags: tuple[str, ...] = ()  # names in `info` that tell the versions of a file apart, the first present one counts
    endpoints: tuple[str, ...] = ()  # environment variables that name another server
    endpoint_attributes: tuple[str, ...] = ()  # attributes of the client that do

    # ---- options ----
    checks_options: bool = False  # whether the parameters of its client's class are all the options that there are
    more_options: frozenset[str] = frozenset()  # that the client passes on
    inner_options: Mapping[str, InnerOptions] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)  # what to do in place of an option that it has not, by name
    prepare: Callable[[Mapping[str, Any]], None] = lambda options: None  # before the client is imported: no look-ups, say

    # ---- errors ----
    codes: Mapping[str, Fault] = field(default_factory=dict)  # by code, by class of the client's errors, and by status
    telling: tuple[str, ...] = ()  # texts, among `codes`, that say more than a code: patterns without groups
    vague: frozenset[str] = frozenset()  # codes of errors whose reason is in a body, which answers to HEAD lack
    in_text: tuple[str, ...] = ()  # patterns with one group: a code within the text of an error
