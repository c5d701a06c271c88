"""URLs that cannot be meant are refused before a client is made: clients take what stands before `@` for a part of the bucket's
name and repeat it in their errors, list every bucket where none is named, and take `s3:/bucket` for a folder of this machine.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from offline_cli.errors import UsageError
from offline_cli.storage.blanking import BLANK, blanked
from offline_cli.storage.providers import buckets, provider_of

__all__ = ["check_url", "decoded", "is_web"]

_ONE_SLASH: Final = re.compile(rf"({'|'.join(sorted(buckets()))}|https?):/?(?!/).*", re.DOTALL)
_FILE: Final = re.compile(r"file:(?://([^/]*))?(/.*)", re.DOTALL)


def check_url(text: str) -> None:
    """Raise UsageError for a URL that must be a mistake; of a chain (`zip://a::s3://...`), for any link of it."""
    for link in text.split("::"):
        scheme, mark, rest = link.partition("://")
        if mark and provider_of(scheme).container:
            _check_bucket(scheme, rest.partition("/")[0])
        elif match := _ONE_SLASH.fullmatch(link):
            name = match[1]
            fix = f"{name}:// with two slashes, or ./{name}:... for a place of this machine"
            raise UsageError(f"{name}:// has lost a slash: this is no URL", where=blanked(text), fix=fix)


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


def decoded(link: str) -> str:
    """A link of a chain as clients take it, who do not decode file URLs (RFC 8089). Raises UsageError for another machine's."""
    if not (match := _FILE.fullmatch(link)):
        return link
    host, path = (match[1] or "").rpartition("@")[2], unquote(match[2], errors="surrogateescape")
    if host.lower() not in ("", "localhost"):
        fix = f"file:///{host}{match[2]} with three slashes, or the place's path on this machine"
        raise UsageError(f"a file of another machine: this URL names the host {host}", where=blanked(link), fix=fix)
    return f"file://{path}"


def is_web(path: str) -> bool:
    """Whether this is an address of the web, where `?` begins a query."""
    return path.startswith(("http://", "https://"))
