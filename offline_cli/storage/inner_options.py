"""Options that a storage's client hands on (`client_kwargs`, `config_kwargs`, `session_kwargs`); refuses unknown keys.

Clients hand them to the library below at the first request, which then fails in words of its own, or is tried again until the
time is over. So the keys are compared with what that library takes, before any request.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from offline_cli.errors import BadConfig
from offline_cli.storage.blanking import blanked

__all__ = ["check_inner_options", "refused_inner_option"]

ENDING: Final = "_kwargs"
NEAR: Final = {
    "region": "region_name",
    "aws_region": "region_name",
    "default_region": "region_name",
    "endpoint": "endpoint_url",
}
BOOLEANS: Final = frozenset({"use_ssl", "verify"})  # of S3's client; the others are texts, and so may `verify` be
FIX: Final = (
    """client_kwargs takes a JSON object by the names of the library below: 'client_kwargs={"region_name": "eu-west-1"}'"""
)


def check_inner_options(scheme: str, options: Mapping[str, Any], url: str) -> None:
    """Raise BadConfig, with every mistake, for inner options that the client for a `scheme` cannot hand on."""
    problems = [problem for name, value in options.items() if name.endswith(ENDING) for problem in _wrong(scheme, name, value)]
    for name, inner in (options.get("client_kwargs") or {}).items() if scheme in ("s3", "s3a") and not problems else ():
        if options.get(name) not in (None, inner):
            problems.append(f"{name}: given twice, and differently: as an option, and in client_kwargs")
    if problems:
        raise BadConfig.of(problems, where=f"--storage-option for {blanked(url)}", fix=FIX)


def refused_inner_option(options: Any, error: Exception, url: str) -> BadConfig | None:
    """What `error`, raised by a client's own code over its arguments, says of inner options; None where it has none."""
    given = [name for name in options if name.endswith(ENDING)] if isinstance(options, Mapping) else []
    if not given:
        return None
    what = f"the storage cannot use what {' and '.join(given)} say: {type(error).__name__}: {blanked(str(error))}"
    return BadConfig(what, where=f"--storage-option for {url}", fix=FIX)


def _wrong(scheme: str, option: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        yield f"{option}: {type(value).__name__}, and no object of names and values"
        return
    known = _TAKEN.get((scheme, option), lambda: None)()
    for name, inner in value.items():
        if known is not None and name not in known:
            near = NEAR.get(name) or next(iter(difflib.get_close_matches(name, known, n=1)), None)
            yield f"{option}: nothing takes {name!r}; " + (
                f"did you mean {near}?" if near in known else f"there is {', '.join(sorted(known))}"
            )
        elif scheme in ("s3", "s3a") and option == "client_kwargs" and not _is_of_kind(name, inner):
            yield f"{option}: {name} is of {type(inner).__name__}, and no {'truth value' if name in BOOLEANS else 'text'}"


def _is_of_kind(name: str, value: Any) -> bool:
    return value is None or isinstance(value, bool if name == "use_ssl" else (bool, str) if name == "verify" else str)


def _of_s3_client() -> frozenset[str]:
    from aiobotocore.session import AioSession

    names = inspect.signature(AioSession._create_client).parameters
    return frozenset(names) - {"self", "service_name", "config"}


def _of_s3_config() -> frozenset[str]:
    from aiobotocore.config import AioConfig
    from botocore.config import Config

    named = inspect.signature(AioConfig.__init__).parameters
    return frozenset({*named, *Config.OPTION_DEFAULTS, *Config.NON_LEGACY_OPTION_DEFAULTS}) - {"self", "kwargs"}


def _of_http_session() -> frozenset[str]:
    from aiohttp import ClientSession

    return frozenset(inspect.signature(ClientSession.__init__).parameters) - {"self", "loop"}


_TAKEN: Final[Mapping[tuple[str, str], Callable[[], frozenset[str] | None]]] = {
    **{(scheme, "client_kwargs"): _of_s3_client for scheme in ("s3", "s3a")},
    **{(scheme, "config_kwargs"): _of_s3_config for scheme in ("s3", "s3a")},
    **{(scheme, "session_kwargs"): _of_http_session for scheme in ("gs", "gcs")},
    **{(scheme, "client_kwargs"): _of_http_session for scheme in ("http", "https")},
}
