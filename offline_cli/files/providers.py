"""Storage providers: one record each, with all that differs between S3, Google Cloud Storage, Azure and others.

A package adds a provider by registering such a record under the entry points `offline_cli.providers`, once for each scheme; it
is imported only when a URL of that scheme is named. It cannot replace a scheme of ours.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, TypeAlias

__all__ = [
    "HERE",
    "Fault",
    "InnerOptions",
    "Provider",
    "buckets",
    "client_packages",
    "known_providers",
    "provider_at",
    "provider_of",
]

Names: TypeAlias = "Callable[[], frozenset[str] | None]"
"""Gives the names that a library takes, importing it; None: it takes any."""

HERE: Final = frozenset({"file", "local", "memory"})  # schemes that need no client

_REGION: Final = (
    "AWS_DEFAULT_REGION in the environment, or "
    """--storage-option 'client_kwargs={"region_name": "eu-west-1"}'"""
)
_REGIONS: Final = ("region", "region_name", "aws_region", "default_region")
_NEAR: Final = {**dict.fromkeys(_REGIONS, "region_name"), "endpoint": "endpoint_url"}
_TEXT: Final = {"": (str,), "use_ssl": (bool,), "verify": (bool, str)}


class Fault(Enum):
    """The meaning of a provider's error. `failures.py` has the message for each."""

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
    near: Mapping[str, str] = field(default_factory=dict)  # what people write, and its name here
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
    advice: Mapping[str, str] = field(default_factory=dict)  # what to do instead of an option that it lacks, by name
    prepare: Callable[[Mapping[str, Any]], None] = lambda options: None  # before the client is imported: no look-ups, say

    # ---- errors ----
    codes: Mapping[str, Fault] = field(default_factory=dict)  # by code, by class of the client's errors, and by status
    telling: tuple[str, ...] = ()  # texts, among `codes`, that say more than a code: patterns without groups
    vague: frozenset[str] = frozenset()  # codes of errors whose reason is in a body, which answers to HEAD lack
    in_text: tuple[str, ...] = ()  # patterns with one group: a code within the text of an error


# ---- S3 ----


def _of_s3_client() -> frozenset[str]:
    from aiobotocore.session import AioSession

    names = inspect.signature(AioSession._create_client).parameters
    return frozenset(names) - {"self", "service_name", "config"}


def _of_s3_config() -> frozenset[str]:
    from aiobotocore.config import AioConfig
    from botocore.config import Config

    named = inspect.signature(AioConfig.__init__).parameters
    return frozenset({*named, *Config.OPTION_DEFAULTS, *Config.NON_LEGACY_OPTION_DEFAULTS}) - {"self", "kwargs"}


_S3: Final = Provider(
    "s3",
    ("s3", "s3a"),
    client=frozenset({"aiobotocore", "botocore", "s3fs"}),
    set_up="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, --storage-option profile=NAME, or anon=true for public data",
    container="bucket",
    serves_ranges=True,
    has_folders=False,
    creates_only=True,
    version_tags=("ETag",),
    endpoints=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    endpoint_attributes=("endpoint_url",),
    checks_options=True,
    more_options=frozenset({"profile"}),
    inner_options={
        "client_kwargs": InnerOptions(_of_s3_client, _TEXT, _NEAR, repeats_options=True),
        "config_kwargs": InnerOptions(_of_s3_config, near=_NEAR),
    },
    advice=dict.fromkeys(_REGIONS, _REGION),
    codes={
        **dict.fromkeys(("NoSuchBucket", "NO_SUCH_BUCKET"), Fault.NO_BUCKET),
        **dict.fromkeys(("InvalidAccessKeyId", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID"), Fault.UNKNOWN_KEY),
        **dict.fromkeys(("SignatureDoesNotMatch", "SIGNATURE_DOES_NOT_MATCH"), Fault.WRONG_SECRET),
        **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "RequestExpired"), Fault.EXPIRED),
        **dict.fromkeys(("TokenRefreshRequired", "InvalidToken"), Fault.EXPIRED),
        **dict.fromkeys(("UnauthorizedSSOTokenError", "TokenRetrievalError"), Fault.EXPIRED),
        **dict.fromkeys(("AuthorizationHeaderMalformed", "IllegalLocationConstraintException"), Fault.WRONG_REGION),
        **dict.fromkeys(("PermanentRedirect", "301"), Fault.WRONG_REGION),
        **dict.fromkeys(("Invalid bucket name", "InvalidBucketName"), Fault.BAD_NAME),
        **dict.fromkeys(("RequestTimeTooSkewed", "REQUEST_TIME_TOO_SKEWED"), Fault.WRONG_CLOCK),
        **dict.fromkeys(("AccessDenied", "AllAccessDisabled", "ACCESS_DENIED"), Fault.DENIED),
        **dict.fromkeys(("SlowDown", "SLOW_DOWN", "ServiceUnavailable"), Fault.BUSY),
        **dict.fromkeys(("NoCredentialsError", "PartialCredentialsError"), Fault.NO_CREDENTIALS),
        **dict.fromkeys(("EndpointConnectionError", "ConnectTimeoutError"), Fault.UNREACHABLE),
    },
    in_text=("AWS Error ([A-Z_]+)", "(Invalid bucket name)"),  # of pyarrow, of botocore
)

# ---- Google Cloud Storage ----


def _of_http_session() -> frozenset[str]:
    from aiohttp import ClientSession

    return frozenset(inspect.signature(ClientSession.__init__).parameters) - {"self", "loop"}


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
    version_tags=("etag", "generation", "md5Hash"),
    endpoints=("STORAGE_EMULATOR_HOST",),
    endpoint_attributes=("endpoint_url",),
    checks_options=True,
    inner_options={"session_kwargs": InnerOptions(_of_http_session, near=_NEAR)},
    prepare=_without_question_of_bucket,
    codes={
        "Forbidden": Fault.DENIED,
        "DefaultCredentialsError": Fault.NO_CREDENTIALS,
        "RefreshError": Fault.EXPIRED,
        "in a reasonable timeframe": Fault.WRONG_CLOCK,
    },
    telling=("in a reasonable timeframe",),
    in_text=("^(Forbidden): ",),
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
    version_tags=("etag",),
    endpoint_attributes=("account_name",),
    checks_options=True,
    codes={
        **dict.fromkeys(("ContainerNotFound", "ContainerBeingDeleted"), Fault.NO_BUCKET),
        **dict.fromkeys(("AuthenticationFailed", "AuthorizationFailure", "InvalidAuthenticationInfo"), Fault.WRONG_SECRET),
        **dict.fromkeys(("Signature not valid in the specified time frame", "Lifetime validation failed"), Fault.EXPIRED),
        "InvalidResourceName": Fault.BAD_NAME,
        "Request date header too old": Fault.WRONG_CLOCK,
        **dict.fromkeys(("AuthorizationPermissionMismatch", "InsufficientAccountPermissions"), Fault.DENIED),
        **dict.fromkeys(("NoAuthenticationInformation", "PublicAccessNotPermitted"), Fault.ANONYMOUS),
        "ServerBusy": Fault.BUSY,
        "Must provide either a connection_string": Fault.NO_CREDENTIALS,
        "Connection string is either blank": Fault.NO_CREDENTIALS,
        **dict.fromkeys(("CredentialUnavailableError", "ClientAuthenticationError"), Fault.NO_CREDENTIALS),
        "ServiceRequestError": Fault.UNREACHABLE,
    },
    telling=("Signature not valid in the specified time frame", "Lifetime validation failed", "Request date header too old"),
    vague=frozenset({"AuthenticationFailed", "InvalidAuthenticationInfo"}),
    in_text=("(Must provide either a connection_string|Connection string is either blank)",),
)
_LAKE: Final = replace(_AZURE, schemes=("adl",), serves_ranges=False, creates_only=False, checks_options=False)

# ---- others ----

_HTTP: Final = Provider(
    "http",
    ("http", "https"),
    client=frozenset({"aiohttp", "fsspec", "requests", "urllib3"}),
    has_folders=False,
    inner_options={"client_kwargs": InnerOptions(_of_http_session, near=_NEAR)},
    codes={
        "401": Fault.ANONYMOUS,
        "403": Fault.DENIED,
        **dict.fromkeys(("429", "503"), Fault.BUSY),
        **dict.fromkeys(("ClientConnectorError", "ClientConnectorDNSError"), Fault.UNREACHABLE),
    },
)
_OURS: Final = (
    _S3,
    _GOOGLE,
    _AZURE,
    _LAKE,
    _HTTP,
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
