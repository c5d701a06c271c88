"""What S3, Google and Azure mean by their errors, in words that say what to do; refuses to guess where a code is unknown.

Clients wrap the provider's answer: s3fs in an OSError whose cause is botocore's, adlfs in a RuntimeError, pyarrow in text. So
the whole chain of causes is looked through for a code, innermost last, and the first known one decides. Known by their names
are also the errors of clients that found no credentials to send.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from offline_cli.errors import StorageError, StorageNotFound, causes
from offline_cli.storage.blanking import blanked

__all__ = ["bucket_of", "explained", "has_code", "no_bucket", "set_up"]

_SET_UP: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, --storage-option profile=NAME, or anon=true for public data",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or --storage-option token=anon for public data",
    "az": "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or _SAS_TOKEN, "
    "or --storage-option anon=true for public data",
}
_FAMILIES: Final = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az"}


@dataclass(frozen=True, slots=True)
class _Meaning:
    what: str  # after "reading it failed: "
    fix: str  # {set_up}: how credentials are given to this provider
    is_missing: bool = False


_NO_BUCKET = _Meaning("the {container} {bucket!r} does not exist", "check its name, or make it first", is_missing=True)
_NO_CREDENTIALS = _Meaning("no credentials were found", "set {set_up}")
_UNKNOWN_KEY = _Meaning("the storage does not know the access key", "check the key's id, or set {set_up}")
_WRONG_SECRET = _Meaning("the storage refused the key: it does not fit the account", "check the secret key, or set {set_up}")
_EXPIRED = _Meaning("the credentials have expired", "log in again, or get new ones; then run the command again")
_WRONG_REGION = _Meaning(
    "the bucket is in another region than the request was for", "set AWS_DEFAULT_REGION to the region of the bucket{region}"
)
_NO_NAME = _Meaning("{bucket!r} cannot be the name of a {container}", "check the name, which ends at the first slash")
_WRONG_CLOCK = _Meaning("the storage refused the request's time", "set the clock of this machine")
_DENIED = _Meaning("access was denied", "ask for permission on this place, or use other credentials: set {set_up}")
_ANONYMOUS = _Meaning("the storage wants credentials, and got none that it takes", "set {set_up}")
_BUSY = _Meaning("the storage is overloaded, or not available", "run the command again in a while")
_UNREACHABLE = _Meaning("the storage cannot be reached", "check the network, and the endpoint or account name")

_CODES: Final = {
    **dict.fromkeys(("NoSuchBucket", "NO_SUCH_BUCKET", "ContainerNotFound", "ContainerBeingDeleted"), _NO_BUCKET),
    **dict.fromkeys(("InvalidAccessKeyId", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID"), _UNKNOWN_KEY),
    **dict.fromkeys(("SignatureDoesNotMatch", "SIGNATURE_DOES_NOT_MATCH"), _WRONG_SECRET),
    **dict.fromkeys(("AuthenticationFailed", "AuthorizationFailure", "InvalidAuthenticationInfo"), _WRONG_SECRET),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "InvalidToken"), _EXPIRED
    ),
    **dict.fromkeys(("Signature not valid in the specified time frame", "Lifetime validation failed"), _EXPIRED),
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect", "301"), _WRONG_REGION
    ),
    **dict.fromkeys(("Invalid bucket name", "InvalidBucketName", "InvalidResourceName"), _NO_NAME),
    **dict.fromkeys(("RequestTimeTooSkewed", "REQUEST_TIME_TOO_SKEWED"), _WRONG_CLOCK),
    **dict.fromkeys(("Request date header too old", "in a reasonable timeframe"), _WRONG_CLOCK),
    **dict.fromkeys(("AccessDenied", "AllAccessDisabled", "ACCESS_DENIED", "Forbidden"), _DENIED),
    **dict.fromkeys(("AuthorizationPermissionMismatch", "InsufficientAccountPermissions", "403"), _DENIED),
    **dict.fromkeys(("NoAuthenticationInformation", "PublicAccessNotPermitted", "401"), _ANONYMOUS),
    **dict.fromkeys(("SlowDown", "SLOW_DOWN", "ServiceUnavailable", "ServerBusy", "429", "503"), _BUSY),
    # classes of clients that got no answer, or had nothing to ask with
    **dict.fromkeys(("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"), _NO_CREDENTIALS),
    **dict.fromkeys(("Must provide either a connection_string", "Connection string is either blank"), _NO_CREDENTIALS),
    **dict.fromkeys(("CredentialUnavailableError", "ClientAuthenticationError"), _NO_CREDENTIALS),
    **dict.fromkeys(("UnauthorizedSSOTokenError", "TokenRetrievalError", "RefreshError"), _EXPIRED),
    **dict.fromkeys(("EndpointConnectionError", "ConnectTimeoutError", "ServiceRequestError"), _UNREACHABLE),
    **dict.fromkeys(("ClientConnectorError", "ClientConnectorDNSError"), _UNREACHABLE),
}
_DETAILS: Final = re.compile(
    "Signature not valid in the specified time frame|Lifetime validation failed|Request date header too old|"
    "in a reasonable timeframe"
)  # words of Azure and Google that say more than their codes
_VAGUE: Final = frozenset({"AuthenticationFailed", "InvalidAuthenticationInfo"})  # Azure's; what is wrong is in the body
_IN_TEXT: Final = re.compile(
    r"AWS Error ([A-Z_]+)|^(Forbidden): |(Must provide either a connection_string|Connection string is either blank)"
    "|(Invalid bucket name)"
)  # words of pyarrow, gcsfs, adlfs and botocore


def explained(error: Exception, url: str, doing: str) -> StorageError | None:
    """`error` as what the provider meant by it, naming `url`; None where its codes say nothing known."""
    for one in causes(error):
        for code in _codes(one):
            if code in _CODES:
                return _error(_CODES[code], one, url, doing)
    return None


def no_bucket(url: str) -> StorageNotFound:
    """The error of a place whose bucket does not exist."""
    what = _NO_BUCKET.what.format(container=_container(url), bucket=bucket_of(url))
    return StorageNotFound(what, where=url, fix=_NO_BUCKET.fix)


def set_up(url: str) -> str:
    """How credentials are given to the provider of a URL."""
    return _SET_UP.get(_family(url), "its credentials")


def has_code(error: Exception) -> bool:
    """Whether the provider said what is wrong in a word of its own that is no riddle; answers without a body (HEAD) lack it."""
    said = {code for one in causes(error) for code in _codes(one) if code in _CODES and not code.isdigit()}
    return bool(said) and (said.isdisjoint(_VAGUE) or any(map(_DETAILS.fullmatch, said)))


def bucket_of(url: str) -> str:
    """The bucket or container in a URL."""
    return url.rpartition("::")[2].partition("://")[2].partition("/")[0]


def _codes(error: Any) -> Iterator[str]:
    """What names `error` to its provider, the most telling first."""
    if match := _DETAILS.search(str(error)):
        yield match.group()
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        yield str(response.get("Error", {}).get("Code", ""))
    for name in ("error_code", "code"):  # azure; gcsfs
        value = getattr(error, name, None)
        if value is not None and not callable(value):
            yield str(getattr(value, "value", value))
    if match := _IN_TEXT.search(str(error)):
        yield next(part for part in match.groups() if part)
    yield type(error).__name__
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        yield str(status)


def _error(meaning: _Meaning, cause: Any, url: str, doing: str) -> StorageError:
    kind = StorageNotFound if meaning.is_missing else StorageError
    what = meaning.what.format(container=_container(url), bucket=bucket_of(url))
    fix = meaning.fix.format(set_up=set_up(url), region=_region(cause))
    return kind(what if meaning.is_missing else f"{doing} failed: {what}{_said(cause)}", where=url, fix=fix)


def _family(url: str) -> str:
    scheme = url.rpartition("::")[2].partition("://")[0]
    return _FAMILIES.get(scheme, scheme)


def _container(url: str) -> str:
    return "container" if _family(url) == "az" else "bucket"


def _region(cause: Any) -> str:
    """The region that S3 says is right, if it does."""
    response = getattr(cause, "response", None)
    region = response.get("Error", {}).get("Region") if isinstance(response, dict) else None
    return f": {region}" if region else ""


def _said(cause: Any) -> str:
    """The provider's own words, first line, in brackets."""
    lines = str(cause).strip().splitlines()
    return f" ({blanked(lines[0])[:300]})" if lines else ""
