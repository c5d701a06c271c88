"""Pipeline files: TOML to a ConnectorPipelineV2; refuses a file by listing all its mistakes at once, before any data is read.

    kind = "env_to_module"       # or "module_to_env", "learner"
    defaults = true              # add the default pieces of that kind
    [[pieces]]
    name = "frame_stacking"      # a registered piece, and its options
    num_frames = 4
    [[pieces]]
    use = "my_package.pieces:MyPiece"   # or a builder function; imported because this file names it

Schema: schemas/pipeline.v1.json.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Final

from offline_cli.connectors.builders import Kind
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.piece_options import Signature, option_mistakes, signature_of
from offline_cli.connectors.pipeline_building import Setting, assembled
from offline_cli.connectors.registry import Maker, imported, own_pieces, registered
from offline_cli.errors import BadConfig
from offline_cli.json_documents import deeper_than, load_schema, mistakes
from offline_cli.spaces import Space
from offline_cli.storage.links import not_found

__all__ = ["PieceEntry", "PipelineFile", "load_pipeline", "parse_pipeline", "pipeline_of", "read_pipeline"]

SCHEMA: Final = "pipeline.v1.json"
MAX_DEPTH: Final = 32
MAX_PIECES: Final = 100  # every one is made again for each that comes after it
PLACES: Final = ("before", "after")
ONLY_MODULE_TO_ENV: Final = ("normalize_actions", "clip_actions")
PAGE: Final = "docs/connectors.md lists the pieces and shows such files"


@dataclass(frozen=True, slots=True)
class PieceEntry:
    """One `[[pieces]]` of a file, found and checked."""

    label: str  # for errors: `pieces[0] (frame_stacking)`
    maker: Maker
    signature: Signature
    options: Mapping[str, Any]
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A pipeline file, checked."""

    kind: Kind
    pieces: tuple[PieceEntry, ...]
    defaults: bool
    normalize_actions: bool | None  # None: as the policy's action scale says
    clip_actions: bool | None
    document: Mapping[str, Any]  # as it was written
    where: str

    def beside_environment(self) -> PipelineFile:
        """The env-to-module pipeline that belongs to a learner's: the pieces that work on both sides, and no others.

        So frame stacking, or a filter, is declared once. Names of pieces, and so their states, are the same on both sides. The
        default pieces are the env-to-module ones, also where the learner's are listed one by one.
        """
        both = tuple(entry for entry in self.pieces if entry.signature.takes_as_learner)
        if not self.defaults:
            both = tuple(entry for entry in both if entry.maker not in _default_makers())
        return replace(self, kind="env_to_module", pieces=both, defaults=True)

    def build(self, setting: Setting) -> ConnectorPipelineV2:
        """The pipeline, its spaces worked out. Raises SpaceMismatch naming the piece, and BadConfig for all other mistakes."""
        return assembled(self, setting)


def _default_makers() -> set[Maker]:
    """The classes of the default env-to-module pieces."""
    from offline_cli.connectors.env_to_module.default_pipeline import default_pieces

    return {type(piece) for piece in default_pieces(None, None)}


def load_pipeline(
    path: str | PathLike[str],
    *,
    observation_space: Space,
    action_space: Space,
    kind: Kind | None = None,
    trusted: bool = True,
    **setting: Any,
) -> ConnectorPipelineV2:
    """The pipeline of a file for these spaces of an environment or a dataset.

    `kind`: what the pipeline is needed as. `setting`: fields of `Setting` (env, device, num_envs, mapping, ...). `trusted`: see
    `parse_pipeline`.

    Raises StorageNotFound; BadConfig with every mistake in `details["problems"]`; SpaceMismatch, naming the piece, what it got
    and what it wanted; MissingPackage.
    """
    file = read_pipeline(path, kind=kind, trusted=trusted)
    return file.build(Setting(observation_space, action_space, **setting))


def read_pipeline(path: str | PathLike[str], *, kind: Kind | None = None, trusted: bool = True) -> PipelineFile:
    """The file at `path`, checked. Raises StorageNotFound, BadConfig, MissingPackage."""
    try:
        text = Path(path).read_bytes()
    except (FileNotFoundError, IsADirectoryError) as err:
        raise not_found(path, "no such pipeline file", where=str(path), fix="check the path") from err
    return pipeline_of(text, where=str(path), kind=kind, trusted=trusted)


def pipeline_of(text: bytes, *, where: str, kind: Kind | None = None, trusted: bool = True) -> PipelineFile:
    """What the bytes of such a file say, checked. Raises BadConfig, MissingPackage."""
    try:
        document = tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as err:  # ValueError: TOMLDecodeError, text that is not UTF-8, a date that is none
        raise BadConfig(f"not TOML: {err}", where=where, fix="see https://toml.io for the syntax") from err
    return parse_pipeline(document, where=where, kind=kind, trusted=trusted)


def parse_pipeline(
    document: Mapping[str, Any],
    *,
    where: str,
    kind: Kind | None = None,
    trusted: bool = True,
    plugins: Collection[str] = (),
) -> PipelineFile:
    """A pipeline from the content of a file.

    `trusted` False is for what comes out of a dataset, run folder or checkpoint: it may name our own pieces, and those of the
    packages `plugins`, which the user has named; no other code
    is imported for it. Raises BadConfig with every mistake in `details["problems"]`, MissingPackage.
    """
    if deeper_than(document, MAX_DEPTH):
        raise BadConfig(f"nested deeper than {MAX_DEPTH}", where=where, fix=PAGE)
    if isinstance(document.get("pieces"), list) and len(document["pieces"]) > MAX_PIECES:
        raise BadConfig(f"{len(document['pieces'])} pieces, and a pipeline has at most {MAX_PIECES}", where=where, fix=PAGE)
    problems = _key_mistakes(document)
    wrong_kind = kind is not None and document.get("kind") in _kinds() and document["kind"] != kind
    if wrong_kind:
        problems.append(f"kind: this is a pipeline of kind '{document['kind']}', and '{kind}' is needed here")
    listed = document.get("pieces", [])
    entries = []
    for index, piece in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(piece, Mapping):
            entries.append(_entry(piece, index, document.get("kind"), None if trusted else plugins, problems))
    if problems:
        raise BadConfig.of(problems, where=where, fix=PAGE)
    return PipelineFile(
        kind=document["kind"],
        pieces=tuple(entry for entry in entries if entry is not None),
        defaults=document.get("defaults", True),
        normalize_actions=document.get("normalize_actions"),
        clip_actions=document.get("clip_actions"),
        document=dict(document),
        where=where,
    )


def _kinds() -> list[str]:
    kinds: list[str] = load_schema(SCHEMA)["properties"]["kind"]["enum"]
    return kinds


def _key_mistakes(document: Mapping[str, Any]) -> list[str]:
    """Mistakes of the file itself, those of single pieces included where the schema knows of them."""
    known = load_schema(SCHEMA)["properties"]
    found = []
    for name in document.keys() - known.keys():
        near = get_close_matches(name, known, n=1)
        found.append(
            f"unknown key '{name}'" + (f", did you mean '{near[0]}'?" if near else f" (there are: {', '.join(known)})")
        )
    found += mistakes({name: value for name, value in document.items() if name in known}, SCHEMA)
    if document.get("kind") in _kinds() and document["kind"] != "module_to_env":
        found += [f"{name}: belongs to pipelines of kind 'module_to_env'" for name in ONLY_MODULE_TO_ENV if name in document]
    return found


def _entry(
    piece: Mapping[str, Any], index: int, kind: Any, named: Collection[str] | None, problems: list[str]
) -> PieceEntry | None:
    """The piece, or None and its mistakes added to `problems`. `named`: see `plugins.plugin`."""
    given = piece.get("name", piece.get("use"))
    label = f"pieces[{index}]" + (f" ({given})" if isinstance(given, str) else "")
    if ("name" in piece) == ("use" in piece):
        problems.append(f'{label}: give either name = "..." or use = "package.module:Class"')
        return None
    if not isinstance(given, str):
        return None  # the schema has said so
    try:
        maker = _maker(piece, label, named)
    except BadConfig as err:
        problems.append(f"{label}: {err.what_in_one_line} ({err.fix})")
        return None
    signature = signature_of(maker)
    options = {name: value for name, value in piece.items() if name not in ("name", "use", *PLACES)}
    found = option_mistakes(signature, options) + _kind_mistakes(maker, signature, kind)
    if all(place in piece for place in PLACES):
        found.append("before and after: give one of the two")
    problems += [f"{label}: {mistake}" for mistake in found]
    return PieceEntry(label, maker, signature, options, piece.get("before"), piece.get("after"))


def _maker(piece: Mapping[str, Any], label: str, named: Collection[str] | None) -> Maker:
    if "name" in piece:
        return registered(piece["name"], named=named)
    if named is not None:
        fix = "name a pipeline file of your own on the command line"
        raise BadConfig("code is only imported where your own file or option names it", where=label, fix=fix)
    return imported(piece["use"], where=label)


def _kind_mistakes(maker: Maker, signature: Signature, kind: Any) -> list[str]:
    """Our own pieces lie in a folder per kind of pipeline; those of `common` serve several."""
    if maker not in own_pieces().values() or kind not in _kinds():
        return []
    home = maker.__module__.split(".")[-2]
    if home in ("common", kind) or (kind == "learner" and signature.takes_as_learner):
        return []
    return [f"belongs to pipelines of kind '{home}', this is one of kind '{kind}'"]
