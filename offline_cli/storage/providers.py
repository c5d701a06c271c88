"""Storage providers (S3, Google Cloud Storage, Azure and others): one record for each.

All locations of a command share one set of options, which go to every client as they are; `time_limit`, seconds per request, is
ours. Other fsspec filesystems use the defaults of `Provider`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from offline_cli.errors import UsageError

HERE: Final = frozenset({"file", "local", "memory"})  # schemes that need no client
TIME_LIMIT: Final = "time_limit"


class Fault(Enum):
    """The meaning of a provider's error: what is wrong, and what to do. `{set_up}`: how to set its credentials."""

    NO_BUCKET = ("the {container} {bucket!r} does not exist", "check its name, or create it first")
    NO_CREDENTIALS = ("no credentials were found", "set {set_up}")
    DENIED = ("access was denied", "check credentials and permissions, or use others: set {set_up}")
    UNREACHABLE = ("the storage cannot be reached, or is overloaded", "check the network and the endpoint, then try again")
    CHANGED = ("the file changed while it was read", "run the command again when nobody writes to the file")


@dataclass(frozen=True, slots=True, eq=False)
class Provider:
    """The properties of one kind of storage; the defaults describe a plain fsspec client."""

    name: str
    schemes: tuple[str, ...]  # of its URLs
    client: frozenset[str] = frozenset()  # its top-level packages: their errors are the storage's, their logs are quiet
    extra: str = ""  # of ours that installs the client; empty: it comes with us, or the error of its import says how
    set_up: str = "its credentials"  # how credentials are given, after "set"
    container: str = ""  # what the first part of a URL is called ("bucket"); empty: URLs may begin with anything
    account_after_at: bool = False  # container@account is a name, and no user
    serves_ranges: bool = False  # ranges of bytes, with `size` in what its client's `info` and listings say
    has_folders: bool = True  # by themselves; in object stores they are only prefixes of names
    creates_only: bool = False  # its client's pipe_file(mode="create") fails where a file is
    forgets_uploads: bool = False  # that were never completed, by itself
    prepare: Callable[[Mapping[str, Any]], None] = lambda options: None  # before the client is imported: no look-ups, say
    pin: Callable[[Any, str], str] | None = None  # a path in its filesystem, with the revision that it stands for now
    read_only: bool = False  # nothing is written by its client file by file: see `publish`
    unseen: str = ""  # what a missing place may also mean
    faults: Mapping[Fault, str] = field(default_factory=dict)  # codes, classes of the client's errors, and statuses of each


def _without_question_of_bucket(options: Mapping[str, Any]) -> None:
    """Stop gcsfs from querying the bucket type if the endpoint is not Google's: it waits a minute for an answer.

    The query uses gRPC, which other servers do not support. The setting must precede the import of gcsfs; the user's own
    setting is kept.
    """
    if options.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST"):
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


def _pinned(fs: Any, path: str) -> str:
    """`path` of a Hub repository with its commit for a revision: what is read is of one moment, and can be named for good."""
    from huggingface_hub import HfApi

    try:
        found = fs.resolve_path(path)
    except FileNotFoundError:  # whoever asks for it is told
        return path
    except (ValueError, NotImplementedError) as err:
        fix = "hf://datasets/OWNER/NAME, with @REVISION and a path behind it where these are wanted"
        raise UsageError(f"this is no place on the Hub: {err}", where=f"hf://{path}", fix=fix) from err
    if not hasattr(found, "repo_id"):  # a bucket of the Hub's
        return path
    info = HfApi(endpoint=fs.endpoint, token=fs.token).repo_info(
        found.repo_id, repo_type=found.repo_type, revision=found.revision
    )
    kind = "" if found.repo_type == "model" else f"{found.repo_type}s/"
    return f"{kind}{found.repo_id}@{info.sha}/{found.path_in_repo}".rstrip("/")


_BUCKETS: Final[Mapping[str, Any]] = {"serves_ranges": True, "has_folders": False, "creates_only": True}
_S3: Final = Provider(
    "s3",
    ("s3", "s3a"),
    client=frozenset({"aiobotocore", "botocore", "s3fs"}),
    set_up="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, --storage-option profile=NAME, or anon=true for public data",
    container="bucket",
    faults={
        Fault.NO_BUCKET: "NoSuchBucket",
        Fault.NO_CREDENTIALS: "NoCredentialsError PartialCredentialsError",
        Fault.DENIED: "ExpiredToken InvalidToken TokenRefreshRequired UnauthorizedSSOTokenError TokenRetrievalError",
        Fault.UNREACHABLE: "EndpointConnectionError ConnectTimeoutError",
        Fault.CHANGED: "FileExpired",
    },
    **_BUCKETS,
)
_GOOGLE: Final = Provider(
    "gs",
    ("gs", "gcs"),
    client=frozenset({"gcsfs", "google"}),
    set_up="GOOGLE_APPLICATION_CREDENTIALS, or --storage-option token=anon for public data",
    container="bucket",
    forgets_uploads=True,
    prepare=_without_question_of_bucket,
    faults={Fault.NO_CREDENTIALS: "DefaultCredentialsError", Fault.DENIED: "RefreshError"},
    **_BUCKETS,
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
    forgets_uploads=True,
    faults={
        Fault.NO_BUCKET: "ContainerNotFound ContainerBeingDeleted",
        Fault.NO_CREDENTIALS: "CredentialUnavailableError",
        Fault.DENIED: "ClientAuthenticationError",
        Fault.UNREACHABLE: "ServiceRequestError",
    },
    **_BUCKETS,
)
_HUB: Final = Provider(
    "hf",
    ("hf",),
    client=frozenset({"huggingface_hub", "httpx", "httpx2"}),
    extra="hub",
    set_up="HF_TOKEN, or log in with `hf auth login`",
    serves_ranges=True,
    has_folders=False,
    pin=_pinned,
    read_only=True,
    unseen=" (hf://datasets/OWNER/NAME[@REVISION]/PATH); a private repository is seen with a token alone: set HF_TOKEN",
    faults={
        Fault.NO_CREDENTIALS: "LocalTokenNotFoundError",
        Fault.DENIED: "GatedRepoError DisabledRepoError",
        Fault.UNREACHABLE: "OfflineModeIsEnabled ConnectError ConnectTimeout",
        Fault.CHANGED: "412",
    },
)
_HTTP: Final = Provider(
    "http",
    ("http", "https"),
    client=frozenset({"aiohttp", "fsspec", "requests", "urllib3"}),
    has_folders=False,
    faults={  # also for other storage
        Fault.DENIED: "401 403",
        Fault.UNREACHABLE: "429 500 502 503 504 ClientConnectorError ClientConnectorDNSError",
    },
)
PROVIDERS: Final = (
    *(_S3, _GOOGLE, _AZURE, _HUB, _HTTP),
    Provider("file", ("file", "local")),
    Provider("memory", ("memory",), creates_only=True),
    Provider("oss", ("oss",), has_folders=False),
    Provider("obs", ("obs",), has_folders=False),
)
CODES: Final = {code: fault for one in PROVIDERS for fault, codes in one.faults.items() for code in codes.split()}
"""Of all providers together: one provider's client may wrap another's."""

BUCKETS: Final = frozenset(scheme for one in PROVIDERS if one.container for scheme in one.schemes)
"""Schemes whose URLs start with a bucket or container name."""


def provider_of(scheme: str) -> Provider:
    """The provider of a scheme; a default record for schemes that only fsspec knows."""
    return next((one for one in PROVIDERS if scheme in one.schemes), Provider(scheme, (scheme,)))


def provider_at(url: str) -> Provider:
    """The provider of a URL's scheme."""
    scheme, mark, _ = url.partition("://")
    return provider_of(scheme if mark else "file")
