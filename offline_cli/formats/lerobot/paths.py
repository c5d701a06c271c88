"""Where the files of a LeRobot dataset are: its root, its path templates, and the one file that each path names.

A template (`data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet`) comes from a file that anybody may have written, and
`str.format` would follow its fields into objects. Here a field is one of a few names with a width, and a filled path has to be
that of a file found in the folder, so that no path leads out of it. Links have to stay in the folder too, except for those of
Hugging Face's cache, whose snapshots link to the blobs beside them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from offline_cli.errors import BadData, NoData, UnsafeData
from offline_cli.storage.locations import Location

__all__ = ["INFO", "Folder", "Template"]

INFO: Final = "meta/info.json"
FIELD: Final = re.compile(r"\{([a-z_]+)(?::0?([0-9]{1,2})d)?\}")
MAX_TEMPLATE: Final = 512  # letters
SNAPSHOTS, BLOBS = "snapshots", "blobs"


@dataclass(frozen=True, slots=True)
class Template:
    """A path with fields for whole numbers."""

    parts: tuple[tuple[str, str, int], ...]  # text, the name of the field after it, and its width; the last field is ""

    @classmethod
    def parsed(cls, text: object, fields: Sequence[str], *, where: str) -> Template:
        """`text` with some of `fields`. Raises BadData for anything else, UnsafeData for a path that leaves its folder."""
        fix = f"write one such as data/chunk-{{{fields[0]}:03d}}/..., with the fields {', '.join(fields)}"
        if not isinstance(text, str) or len(text) > MAX_TEMPLATE:
            raise BadData(f"data_path is no path: {str(text)[:80]!r}", where=where, fix=fix)
        parts, at = [], 0
        for match in FIELD.finditer(text):
            if match[1] not in fields:
                raise BadData(
                    f"data_path has the field {match[1]!r}, which is none of {', '.join(fields)}", where=where, fix=fix
                )
            parts.append((text[at : match.start()], match[1], int(match[2] or 0)))
            at = match.end()
        parts.append((text[at:], "", 0))
        plain = "/".join(part for part, _, _ in parts)
        if "{" in plain or "}" in plain:
            raise BadData(f"data_path has a field that is no number: {text[:80]!r}", where=where, fix=fix)
        if text.startswith("/") or "\\" in text or "\0" in text or ":" in plain or ".." in text.split("/"):
            raise UnsafeData(
                f"data_path leads out of the dataset: {text[:80]!r}", where=where, fix="name a path below its folder"
            )
        return cls(tuple(parts))

    def filled(self, values: Mapping[str, int]) -> str:
        """The path for these numbers."""
        return "".join(f"{text}{values[name]:0{width}d}" if name else text for text, name, width in self.parts)


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one dataset, by their path below its root."""

    root: str  # path or URL, for messages
    files: Mapping[str, Location]

    @classmethod
    def of(cls, files: Sequence[Location], location: str) -> Folder:
        """The dataset that `files` are of. Raises NoData where there is none, or several; UnsafeData for links out of it."""
        infos = [file for file in files if file.path.endswith(f"/{INFO}") or file.path == INFO]
        if len(infos) != 1:
            what = f"{len(infos)} LeRobot datasets are here" if infos else f"no {INFO}: this is no LeRobot dataset"
            fix = f"name the folder of one of them, such as {infos[0].url.removesuffix(f'/{INFO}')}" if infos else ""
            raise NoData(what, where=location, fix=fix or f"name the folder that has {INFO}")
        root = infos[0].path.removesuffix(INFO)
        below = {file.path.removeprefix(root): file for file in files if file.path.startswith(root)}
        if infos[0].is_local:
            _refuse_links(root, below)
        return cls(infos[0].url.removesuffix(INFO).rstrip("/") or ".", below)

    def place(self, path: str) -> str:
        """For messages."""
        return f"{self.root}/{path}"

    def file(self, path: str) -> Location:
        """Raises BadData where the dataset has no such file."""
        if path not in self.files:
            raise BadData("a file of the dataset is missing", where=self.place(path), fix="copy or download the dataset again")
        return self.files[path]

    def below(self, folder: str, ending: str) -> list[Location]:
        """The files below a folder, sorted by path."""
        return [file for path, file in sorted(self.files.items()) if path.startswith(f"{folder}/") and path.endswith(ending)]


def _refuse_links(root: str, files: Mapping[str, Location]) -> None:
    real = os.path.realpath(root or ".")
    inside = [real]
    if os.path.basename(os.path.dirname(real)) == SNAPSHOTS:
        inside.append(os.path.join(os.path.dirname(os.path.dirname(real)), BLOBS))
    roots = tuple(os.path.join(place, "") for place in inside)
    for file in files.values():
        if not os.path.realpath(file.path).startswith(roots):
            fix = "copy what the link names into the dataset"
            raise UnsafeData("a link leads out of the dataset", where=file.url, fix=fix)
