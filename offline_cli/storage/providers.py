"""Storage providers: one record each, with all that differs between S3, Google Cloud Storage, Azure and others; and the options
of their clients (`--storage-option`), checked by name before any request.

A package adds a provider by registering such a record under the entry points `offline_cli.providers`, once for each scheme; it
is imported only when a URL of that scheme is named. It cannot replace a scheme of ours.

One set of options serves all places of a command: each place gets those that it takes, and an option that no place takes is an
error. Three are ours, and every place takes them: `time_limit`, the seconds that a request may take; `cache`, a folder of this
machine that keeps copies of remote files; and `cache_size`, its limit in bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Final

from offline_cli.errors import BadConfig, UsageError

HERE: Final = frozenset({"file", "local", "memory"})  # schemes that need no client
TIME_LIMIT, CACHE, CACHE_SIZE = "time_limit", "cache", "cache_size"
OURS: Final = frozenset({TIME_LIMIT, CACHE, CACHE_SIZE})


class Fault(Enum):
    """The meaning of a provider's error: what is wrong, and what to do. `{set_up}`: how its credentials are given."""

    NO_BUCKET = ("the {container} {bucket!r} does not exist", "check its name, or make it first")
    NO_CREDENTIALS = ("no credentials were found", "set {set_up}")
    DENIED = ("access was denied", "check credentials and permissions, or use others: set {set_up}")
    UNREACHABLE = ("the storage cannot be reached, or is overloaded", "check the network and the endpoint, then try again")
    CHANGED = ("the file changed while it was read", "run the command again once nobody writes there")


@dataclass(frozen=True, slots=True, eq=False)
class Provider:
    """Everything about one kind of storage that is not the same for all. Fields left out are those of a plain fsspec client."""

    name: str
    schemes: tuple[str, ...]  # of its URLs
    filesystem: str = ""  # "package.module.Class" of fsspec's kind; empty: fsspec knows one for the scheme
    client: frozenset[str] = frozenset()  # its top-level packages: their errors are the storage's, their logs are quiet
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

    # ---- options ----
    checks_options: bool = False  # whether the parameters of its client's class are all the options that there are
    more_options: frozenset[str] = frozenset()  # that the client passes on
    prepare: Callable[[Mapping[str, Any]], None] = lambda options: None  # before the client is imported: no look-ups, say

    # ---- errors ----
    codes: Mapping[str, Fault] = field(default_factory=dict)  # by code, by class of the client's errors, and by status


def _by_code(faults: Mapping[Fault, str]) -> dict[str, Fault]:
    return {code: fault for fault, codes in faults.items() for code in codes.split()}


def _without_question_of_bucket(options: Mapping[str, Any]) -> None:
    """Keep gcsfs from asking what kind of bucket this is where the endpoint is not Google's, which takes it a minute.

    It asks over gRPC, which other servers do not answer, unless configured before it is imported. What the user has set
    stays.
    """
    if options.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST"):
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


_S3: Final = Provider(
    "s3",
    ("s3", "s3a"),
    client=frozenset({"aiobotocore", "botocore", "s3fs"}),
    set_up="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, --storage-option profile=NAME, or anon=true for public data",
    container="bucket",
    serves_ranges=True,
    has_folders=False,
    creates_only=True,
    checks_options=True,
    more_options=frozenset({"profile"}),
    codes=_by_code(
        {
            Fault.NO_BUCKET: "NoSuchBucket",
            Fault.NO_CREDENTIALS: "NoCredentialsError PartialCredentialsError",
            Fault.DENIED: "ExpiredToken InvalidToken TokenRefreshRequired UnauthorizedSSOTokenError TokenRetrievalError",
            Fault.UNREACHABLE: "EndpointConnectionError ConnectTimeoutError",
            Fault.CHANGED: "FileExpired",
        }
    ),
)
_GOOGLE: Final = Provider(
    "gs",
    ("gs", "gcs"),
    client=frozenset({"gcsfs", "google"}),
    set_up="GOOGLE_APPLICATION_CREDENTIALS, or --storage-option token=anon for public data",
    container="bucket",
    serves_ranges=True,
    has_folders=False,
    creates_only=True,
    forgets_uploads=True,
    checks_options=True,
    prepare=_without_question_of_bucket,
    codes=_by_code({Fault.NO_CREDENTIALS: "DefaultCredentialsError", Fault.DENIED: "RefreshError"}),
)
_AZURE: Final = Provider(
    "az",
    ("az", "abfs", "abfss"),
    client=frozenset({"adlfs", "azure"}),
    extra="azure",
    set_up="AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or _SAS_TOKEN, "
    "or --storage-option anon=true for public data",
    container="container",
    account_after_at=True,
    serves_ranges=True,
    has_folders=False,
    creates_only=True,
    forgets_uploads=True,
    checks_options=True,
    codes=_by_code(
        {
            Fault.NO_BUCKET: "ContainerNotFound ContainerBeingDeleted",
            Fault.NO_CREDENTIALS: "CredentialUnavailableError",
            Fault.DENIED: "ClientAuthenticationError",
            Fault.UNREACHABLE: "ServiceRequestError",
        }
    ),
)
_HTTP: Final = Provider(
    "http",
    ("http", "https"),
    client=frozenset({"aiohttp", "fsspec", "requests", "urllib3"}),
    has_folders=False,
    codes=_by_code(  # of any storage
        {Fault.DENIED: "401 403", Fault.UNREACHABLE: "429 500 502 503 504 ClientConnectorError ClientConnectorDNSError"}
    ),
)
_OURS: Final = (
    *(_S3, _GOOGLE, _AZURE, _HTTP),
    Provider("file", ("file", "local"), checks_options=True),
    Provider("memory", ("memory",), checks_options=True, creates_only=True),
    Provider("oss", ("oss",), has_folders=False),
    Provider("obs", ("obs",), has_folders=False),
)

# ---- by scheme ----

_known: dict[str, Provider] = {scheme: provider for provider in _OURS for scheme in provider.schemes}


def known_providers() -> tuple[Provider, ...]:
    """Ours, and those of other packages that have been named in this process."""
    return tuple(dict.fromkeys(_known.values()))


def provider_of(scheme: str) -> Provider:
    """The provider of a scheme; a plain one where none is registered.

    Raises BadConfig for a registered object that is not a provider of this scheme, MissingPackage where it cannot be imported.
    """
    found = _known.get(scheme)
    if found is None:
        found = _known[scheme] = _registered(scheme) or Provider(scheme, (scheme,))
    return found


def provider_at(url: str) -> Provider:
    """The provider that a URL leads to in the end: of `zip://a::s3://b/c` that of `s3`."""
    scheme, mark, _ = url.rpartition("::")[2].partition("://")
    return provider_of(scheme if mark else "file")


def buckets() -> frozenset[str]:
    """Schemes of URLs that begin with the name of a bucket, or container."""
    return frozenset(scheme for scheme, provider in _known.items() if provider.container)


def client_packages() -> frozenset[str]:
    """Top-level packages of the clients."""
    return frozenset[str]().union(*(provider.client for provider in known_providers()))


def _registered(scheme: str) -> Provider | None:
    import fsspec

    from offline_cli.plugins import PROVIDERS, plugin

    found = plugin(PROVIDERS, scheme) if scheme else None
    if found is None:
        return None
    provider = found.load()
    if not isinstance(provider, Provider) or scheme not in provider.schemes:
        what = f"provider {scheme!r} of the package {found.package} is {provider!r}, not a Provider of {scheme}://"
        raise BadConfig(what, where=f"provider {scheme}, registered by {found.package}", fix="see docs/storage.md")
    if provider.filesystem:
        fsspec.register_implementation(scheme, provider.filesystem, clobber=True)
    return provider


# ---- options of clients ----


def options_for(url: str, options: Mapping[str, Any] | None, *, beside: Iterable[str] = ()) -> dict[str, Any]:
    """Those of `options` that the client for `url` takes.

    `beside`: the other places that `options` are for. Raises UsageError for one that no client of them takes.
    """
    given = {name: value for name, value in (options or {}).items() if name not in OURS}
    if not given:
        return {}
    schemes = [_scheme(place) for place in dict.fromkeys([url, *beside])]
    takes = [_names_of_client(scheme) for scheme in schemes]
    known = frozenset[str]().union(*(names or () for names in takes))
    unknown = [] if None in takes else [name for name in given if name not in known]
    if unknown:
        what = f"the storage takes no option {unknown[0]!r}"
        fix = f"it takes {', '.join(sorted(known | OURS))}; others are for places such as s3://, gs:// and az://"
        raise UsageError(what, where=f"--storage-option {unknown[0]} for {', '.join(schemes)}", fix=fix)
    return given if takes[0] is None else {name: value for name, value in given.items() if name in takes[0]}


def _scheme(url: str) -> str:
    """The scheme of a place; of a chain "::", whose options only its clients know."""
    from fsspec.utils import get_protocol  # here: `inspect` reads a manifest without fsspec

    return "::" if "::" in url else str(get_protocol(url))


@cache
def _names_of_client(scheme: str) -> frozenset[str] | None:
    """Names of the options for places of a scheme; None where only the client knows them."""
    import inspect

    import fsspec

    if scheme == "::" or not provider_of(scheme).checks_options:
        return None
    try:
        client = fsspec.get_filesystem_class(scheme)
    except ImportError:
        return None
    makers = [kind.__init__ for kind in client.__mro__ if "__init__" in vars(kind) and kind is not object]
    parameters = {one.name: one.kind for maker in makers for one in inspect.signature(maker).parameters.values()}
    named = {
        name
        for name, kind in parameters.items()
        if kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    }
    return frozenset(named - {"self", "fs", "asynchronous", "loop"}) | provider_of(scheme).more_options
