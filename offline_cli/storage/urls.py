"""URLs before any client sees them; refuses ones that carry a password, name no bucket, or have lost a slash.

Clients take what stands before `@` for a part of the bucket's name and repeat it in their errors, list every bucket where none
is named, and take `s3:/bucket` for a folder of this machine.
"""

from __future__ import annotations

import re
from typing import Final

from offline_cli.errors import UsageError
from offline_cli.storage.blanking import blanked
from offline_cli.storage.providers import buckets, provider_of
from offline_cli.storage.secret_names import BLANK

__all__ = ["check_url", "is_of_bucket", "is_web"]

_ONE_SLASH: Final = re.compile(rf"({'|'.join(sorted(buckets()))}|https?):/?(?!/).*", re.DOTALL)
_WEB: Final = re.compile(r"https?://")


def check_url(text: str) -> None:
    """Raise UsageError for a URL that cannot be meant; of a chain (`zip://a::s3://...`), for any link of it."""
    for link in text.split("::"):
        scheme, mark, rest = link.partition("://")
        if mark and provider_of(scheme).container:
            _check_bucket(scheme, rest.partition("/")[0])
        elif match := _ONE_SLASH.fullmatch(link):
            name = match[1]
            fix = f"{name}:// with two slashes, or ./{name}:... for a place of this machine"
            raise UsageError(f"{name}:// has lost a slash: this is no URL", where=blanked(text), fix=fix)


def is_web(path: str) -> bool:
    """Whether this is an address of the web, where `?` begins a query."""
    return _WEB.match(path) is not None


def is_of_bucket(url: str) -> bool:
    """Whether this is, or leads through, an address in an object store."""
    return any(provider_of(link.partition("://")[0]).container for link in url.split("::") if "://" in link)


def _check_bucket(scheme: str, bucket: str) -> None:
    provider = provider_of(scheme)
    noun = provider.container
    if not bucket:
        raise UsageError(f"{scheme}:// names no {noun}", where=f"{scheme}://", fix=f"{scheme}://{noun}/path")
    has_at = "@" in bucket and not provider.account_after_at
    if has_at or (":" in bucket and not bucket.startswith("arn:")):
        what = f"a URL of {scheme}:// begins with the name of a {noun}: no user, password or port goes there"
        fix = f"{scheme}://{noun}/path, and for credentials set {provider.set_up}"
        raise UsageError(what, where=f"{scheme}://{BLANK}", fix=fix)
