"""What is known of the dataset in a damaged folder besides its shards: from a manifest, the writer's note, or the shards.

What is left of a broken manifest is taken part by part. Spaces are never guessed in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from offline_cli.choices import COMPRESSION
from offline_cli.columns import Columns
from offline_cli.converting.reading import read_opened
from offline_cli.datasets.lock import WritingNote
from offline_cli.datasets.manifest import Environment, Manifest
from offline_cli.datasets.reading import ShardReader
from offline_cli.environments import spaces_of_env
from offline_cli.errors import BadConfig, BadData, NoData, OfflineCliError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.rllib.columns import RllibColumnsSource
from offline_cli.formats.rllib.episodes import RllibEpisodesSource
from offline_cli.formats.source import UNKNOWN_SCALE
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.parquet.shard_writing import COMPRESSIONS
from offline_cli.parquet.shards import opened
from offline_cli.spaces import Space, space_from_json
from offline_cli.storage.locations import Location

__all__ = ["FACTS", "Facts", "facts_of_document", "facts_of_manifest", "facts_of_note", "facts_of_shards"]

SPACES: Final = ("observation_space", "action_space")
FACTS: Final = ("format", *SPACES, "spaces_inferred", "action_scale", "environment", "meanings", "compression")
"""What `Facts` and a manifest say under the same names."""
SCALES: Final = ("env", "normalized", "unknown")


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What is known of a dataset."""

    said_by: str  # "note" | "manifest" | "shards"
    format: str
    observation_space: Space | None
    action_space: Space | None
    spaces_inferred: bool = False
    action_scale: str = UNKNOWN_SCALE
    environment: Environment | None = None
    meanings: Meanings = NO_MEANINGS
    compression: str = COMPRESSION
    assumptions: Mapping[str, int] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    episodes_lost: int | None = None
    resumes: WritingNote | None = None  # the note that --resume would continue from, if all of its shards are whole


def facts_of_manifest(manifest: Manifest) -> Facts:
    """All that a manifest says."""
    known = {name: getattr(manifest, name) for name in (*FACTS, "assumptions", "provenance", "episodes_lost")}
    return Facts("manifest", **known)


def facts_of_note(note: WritingNote, where: str) -> Facts:
    """From the options that `DatasetWriter` keeps in its note. Raises BadData where they do not say format and spaces."""
    known = facts_of_document(note.options, where)
    if known is None:
        what = "the note of the writer has no readable format or spaces"
        raise BadData(what, where=where, fix=f"the command that wrote it, with --overwrite: {note.command}")
    return replace(known, said_by="note", provenance={"commands": [note.command], "started": note.started}, resumes=note)


def facts_of_document(document: Mapping[str, Any], where: str) -> Facts | None:
    """What can be read of a manifest, or of the options of a note; None where format or spaces cannot."""
    try:
        spaces = [None if document[name] is None else space_from_json(document[name], where=where) for name in SPACES]
    except (KeyError, OfflineCliError):
        return None
    if document.get("format") not in ("episodes", "columns") or (document["format"] == "columns" and None in spaces):
        return None
    inferred = document.get("spaces_inferred") is True
    return Facts("manifest", document["format"], spaces[0], spaces[1], inferred, **_other_parts(document))


def _other_parts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Those that have the right kind, by their names in `Facts`."""
    counts, provenance, lost = (document.get(name) for name in ("assumptions", "provenance", "episodes_lost"))
    parts: dict[str, Any] = {
        "assumptions": {k: v for k, v in counts.items() if type(v) is int and v >= 0} if isinstance(counts, dict) else {},
        "provenance": provenance if isinstance(provenance, dict) else {},
        "episodes_lost": lost if type(lost) is int and lost >= 0 else None,
    }
    with suppress(ValueError):
        parts["environment"] = Environment.from_json(document.get("environment"))
    with suppress(OfflineCliError):
        parts["meanings"] = Meanings.of(document.get("meanings", {}), "")
    chosen = {"action_scale": SCALES, "compression": COMPRESSIONS}
    return parts | {name: document[name] for name, values in chosen.items() if document.get(name) in values}


def facts_of_shards(
    folder: Location, shards: Sequence[Location], asked: AskedEnvironment | None, left: Mapping[str, Any]
) -> Facts:
    """Format by the columns, spaces as `convert` would have them of the same files; `left`: of a broken manifest.

    `asked`: an environment whose spaces are theirs. Raises BadData where none can be read, BadConfig where spaces are not
    known.
    """
    readable = [place for place in shards if _opens(place)]
    if not readable:
        fix = "restore it from a copy, or write the dataset again from its source"
        raise BadData("none of the shards can be read", where=folder.url, fix=fix)
    with opened(readable[0]) as file:
        packed = Columns.ITEM in file.schema_arrow.names
        codec = str(file.metadata.row_group(0).column(0).compression).lower() if file.num_row_groups else ""
    others = _other_parts(left)
    env = None if asked is None else asked.among([(folder.url, others.get("environment"))])
    source = (RllibEpisodesSource if packed else RllibColumnsSource)(readable, folder.url)
    try:
        stream = read_opened([source], on_error="skip", env=env, env_spaces=None if env is None else spaces_of_env(env))
    except NoData as err:
        raise BadData("no episode can be read from the shards", where=folder.url, fix=err.fix) from err
    stream.close()  # only its spaces are needed
    known = Facts(
        "shards",
        "episodes" if packed else "columns",
        stream.observation_space,
        stream.action_space,
        stream.spaces_inferred,
        **{"environment": Environment.of(env), "compression": codec, **others, "action_scale": stream.action_scale},
    )
    try:
        with opened(readable[0]) as file:
            ShardReader(known.format, known.observation_space, known.action_space).check_columns(file, readable[0])
    except BadData as err:
        what = f"the spaces of the dataset are unknown, and they do not follow from its columns: {err.what}"
        raise BadConfig(what, where=readable[0].url, fix="name the environment with --env") from err
    return replace(known, compression=known.compression if known.compression in COMPRESSIONS else COMPRESSION)


def _opens(place: Location) -> bool:
    try:
        with opened(place) as file:
            return bool(file.metadata.num_rows > 0)
    except BadData:
        return False
