"""Storage providers: one record each, with all that differs between S3, Google Cloud Storage, Azure and others.

A package adds a provider by registering such a record under the entry points `offline_cli.providers`, once for each scheme; it
is imported only when a URL of that scheme is named. It cannot replace a scheme of ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

__all__ = ["HERE", "Fault", "Provider", "buckets", "client_packages", "known_providers", "provider_at", "provider_of"]

HERE: Final = frozenset({"file", "local", "memory"})  # schemes that need no client

_REGION: Final = (
    "AWS_DEFAULT_REGION in the environment, or "
    """--storage-option 'client_kwargs={"region_name": "eu-west-1"}'"""
)
_REGIONS: Final = ("region", "region_name", "aws_region", "default_region")


class Fault(Enum):
    """The meaning of a provider's error: what is wrong, and what to do. `{set_up}`: how its credentials are given."""

    NO_BUCKET = ("the {container} {bucket!r} does not exist", "check its name, or make it first")
    NO_CREDENTIALS = ("no credentials were found", "set {set_up}")
    UNKNOWN_KEY = ("the storage does not know the access key", "check the key's id, or set {set_up}")
    WRONG_SECRET = ("the storage refused the key: it does not fit the account", "check the secret key, or set {set_up}")
    EXPIRED = ("the credentials have expired", "log in again, or get new ones; then run the command again")
    WRONG_REGION = (
        "the bucket is in another region than the request was for",
        "set AWS_DEFAULT_REGION to the region of the bucket{region}",
    )
    BAD_NAME = ("{bucket!r} cannot be the name of a {container}", "check the name, which ends at the first slash")
    WRONG_CLOCK = ("the storage refused the request's time", "set the clock of this machine")
    DENIED = ("access was denied", "ask for permission on this place, or use other credentials: set {set_up}")
    ANONYMOUS = ("the storage wants credentials, and got none that it accepts", "set {set_up}")
    BUSY = ("the storage is overloaded, or not available", "run the command again in a while")
    UNREACHABLE = ("the storage cannot be reached", "check the network, and the endpoint or account name")
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
    advice: Mapping[str, str] = field(default_factory=dict)  # what to do instead of an option that it lacks, by name
    prepare: Callable[[Mapping[str, Any]], None] = lambda options: None  # before the client is imported: no look-ups, say

    # ---- errors ----
    codes: Mapping[str, Fault] = field(default_factory=dict)  # by code, by class of the client's errors, and by status
    in_text: tuple[str, ...] = ()  # patterns with one group: a code within the text of an error, which outranks its own code


def _by_code(faults: Mapping[Fault, str]) -> dict[str, Fault]:
    return {code: fault for fault, codes in faults.items() for code in codes.split(", ")}


# ---- S3 ----

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
    advice=dict.fromkeys(_REGIONS, _REGION),
    codes=_by_code(
        {
            Fault.NO_BUCKET: "NoSuchBucket, NO_SUCH_BUCKET",
            Fault.UNKNOWN_KEY: "InvalidAccessKeyId, INVALID_ACCESS_KEY_ID, INVALID_CLIENT_TOKEN_ID",
            Fault.WRONG_SECRET: "SignatureDoesNotMatch, SIGNATURE_DOES_NOT_MATCH",
            Fault.EXPIRED: "ExpiredToken, ExpiredTokenException, RequestExpired, TokenRefreshRequired, InvalidToken, "
            "UnauthorizedSSOTokenError, TokenRetrievalError",
            Fault.WRONG_REGION: "AuthorizationHeaderMalformed, IllegalLocationConstraintException, PermanentRedirect, 301",
            Fault.BAD_NAME: "Invalid bucket name, InvalidBucketName",
            Fault.WRONG_CLOCK: "RequestTimeTooSkewed, REQUEST_TIME_TOO_SKEWED",
            Fault.DENIED: "AccessDenied, AllAccessDisabled, ACCESS_DENIED",
            Fault.BUSY: "SlowDown, SLOW_DOWN, ServiceUnavailable",
            Fault.NO_CREDENTIALS: "NoCredentialsError, PartialCredentialsError",
            Fault.UNREACHABLE: "EndpointConnectionError, ConnectTimeoutError, NETWORK_CONNECTION",
            Fault.CHANGED: "FileExpired",
        }
    ),
    in_text=("AWS Error ([A-Z_]+)", "(Invalid bucket name)"),  # of pyarrow, of botocore
)

# ---- Google Cloud Storage ----


def _without_question_of_bucket(options: Mapping[str, Any]) -> None:
    """Keep gcsfs from asking what kind of bucket this is where the endpoint is not Google's, which takes it a minute.

    It asks over gRPC, which other servers do not answer, unless configured before it is imported. What the user has set
    stays.
    """
    if options.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST"):
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


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
    codes={
        "Forbidden": Fault.DENIED,
        "DefaultCredentialsError": Fault.NO_CREDENTIALS,
        "RefreshError": Fault.EXPIRED,
        "in a reasonable timeframe": Fault.WRONG_CLOCK,
    },
    in_text=("(in a reasonable timeframe)", "^(Forbidden): "),
)

# ---- Azure ----

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
            Fault.NO_BUCKET: "ContainerNotFound, ContainerBeingDeleted",
            Fault.WRONG_SECRET: "AuthenticationFailed, AuthorizationFailure, InvalidAuthenticationInfo",
            Fault.EXPIRED: "Signature not valid in the specified time frame, Lifetime validation failed",
            Fault.BAD_NAME: "InvalidResourceName",
            Fault.WRONG_CLOCK: "Request date header too old",
            Fault.DENIED: "AuthorizationPermissionMismatch, InsufficientAccountPermissions",
            Fault.ANONYMOUS: "NoAuthenticationInformation, PublicAccessNotPermitted",
            Fault.BUSY: "ServerBusy",
            Fault.NO_CREDENTIALS: "Must provide either a connection_string, Connection string is either blank, "
            "CredentialUnavailableError, ClientAuthenticationError",
            Fault.UNREACHABLE: "ServiceRequestError",
        }
    ),
    in_text=(
        "(Signature not valid in the specified time frame|Lifetime validation failed|Request date header too old)",
        "(Must provide either a connection_string|Connection string is either blank)",
    ),
)
_LAKE: Final = replace(_AZURE, schemes=("adl",), serves_ranges=False, creates_only=False, checks_options=False)

# ---- others ----

_HTTP: Final = Provider(
    "http",
    ("http", "https"),
    client=frozenset({"aiohttp", "fsspec", "requests", "urllib3"}),
    has_folders=False,
    codes=_by_code(
        {
            Fault.ANONYMOUS: "401",
            Fault.DENIED: "403",
            Fault.BUSY: "429, 503",
            Fault.UNREACHABLE: "ClientConnectorError, ClientConnectorDNSError",
        }
    ),
)
_OURS: Final = (
    *(_S3, _GOOGLE, _AZURE, _LAKE, _HTTP),
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

    from offline_cli.errors import BadConfig
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
