"""Options that a storage's client hands on (`client_kwargs`, `config_kwargs`, `session_kwargs`); refuses unknown keys.

Clients hand them to the library below at the first request, which then fails in words of its own, or is tried again until the
time is over. So the keys are compared with what that library takes, before any request.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from offline_cli.errors import BadConfig
from offline_cli.storage.blanking import blanked
from offline_cli.storage.provider import InnerOptions
from offline_cli.storage.providers import provider_of

__all__ = ["check_inner_options", "refused_inner_option"]

ENDING: Final = "_kwargs"
FIX: Final = (
    """client_kwargs takes a JSON object by the names of the library below: 'client_kwargs={"region_name": "eu-west-1"}'"""
)


def check_inner_options(scheme: str, options: Mapping[str, Any], url: str) -> None:
    """Raise BadConfig, with every mistake, for inner options that the client for a `scheme` cannot hand on."""
    taken = provider_of(scheme).inner_options
    inner = {name: value for name, value in options.items() if name.endswith(ENDING) and value is not None}
    problems = [problem for name, value in inner.items() for problem in _wrong(name, value, taken.get(name))]
    for name, value in inner.items() if not problems else ():
        repeated = value if name in taken and taken[name].repeats_options else {}
        problems += [
            f"{twice}: given twice, and differently: as an option, and in {name}"
            for twice, given in repeated.items()
            if options.get(twice) not in (None, given)
        ]
    if problems:
        raise BadConfig.of(problems, where=f"--storage-option for {blanked(url)}", fix=FIX)


def refused_inner_option(options: Any, error: Exception, url: str) -> BadConfig | None:
    """What `error`, raised by a client's own code over its arguments, says of inner options; None where it has none."""
    given = [name for name in options if name.endswith(ENDING)] if isinstance(options, Mapping) else []
    if not given:
        return None
    what = f"the storage cannot use what {' and '.join(given)} say: {type(error).__name__}: {blanked(str(error))}"
    return BadConfig(what, where=f"--storage-option for {url}", fix=FIX)


def _wrong(option: str, value: Any, taken: InnerOptions | None) -> Iterator[str]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        yield f"{option}: {type(value).__name__}, and no object of names and values"
        return
    if taken is None:
        return
    known = taken.names()
    for name, inner in value.items():
        kinds = taken.kinds.get(name, taken.kinds.get("")) if taken.kinds is not None else None
        if known is not None and name not in known:
            near = taken.near.get(name) or next(iter(difflib.get_close_matches(name, known, n=1)), None)
            yield f"{option}: nothing takes {name!r}; " + (
                f"did you mean {near}?" if near in known else f"there is {', '.join(sorted(known))}"
            )
        elif kinds is not None and not (inner is None or isinstance(inner, kinds)):
            yield f"{option}: {name} is of {type(inner).__name__}, and no {'truth value' if bool in kinds else 'text'}"
