"""Names that say that what they stand for is secret: of options, of keys in JSON, and in query strings.

The list is in docs/storage.md. A plural of things that are counted (`max_tokens`) and a plain `key` are no such names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["BLANK", "blanked_keys", "blanked_values", "looks_secret"]

BLANK: Final = "***"
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET: Final = re.compile(
    r"secret|passw|passphrase|credential|apikey|accesskey|privatekey"
    r"|(?:^|_)(?:[a-z]*token|pwd|auth|authorization|bearer|sig|signature|sas|connection_string)(?:_|$)"
    r"|(?:^|_)(?:access|account|api|application|auth|client|customer|encryption|license|private"
    r"|service|session|shared|signing|storage|aws)_key(?:_|$)"
)


def looks_secret(name: str) -> bool:
    """Whether what has this name is to be blanked out, in whatever way its words are put together."""
    return _SECRET.search(re.sub(r"[^a-z0-9]+", "_", _CAMEL.sub("_", name).lower())) is not None


def blanked_values(value: Any) -> Any:
    """Plain JSON values with `***` for what stands under such a key; truth values and null stay, for they say nothing."""
    if isinstance(value, Mapping):
        return {key: _blanked_under(key, part) for key, part in value.items()}
    return [blanked_values(part) for part in value] if isinstance(value, list) else value


def _blanked_under(key: Any, value: Any) -> Any:
    return BLANK if looks_secret(str(key)) and value is not None and not isinstance(value, bool) else blanked_values(value)


def blanked_keys(value: Any, within: str = "") -> list[str]:
    """Dotted names of the keys whose values `blanked_values` has blanked out."""
    if isinstance(value, list):
        return [name for part in value for name in blanked_keys(part, within)]
    found: list[str] = []
    for key, part in value.items() if isinstance(value, Mapping) else ():
        is_blank = part == BLANK and looks_secret(str(key))
        found += [f"{within}{key}"] if is_blank else blanked_keys(part, f"{within}{key}.")
    return found
