"""Pipeline files: TOML to a ConnectorPipelineV2. All mistakes of a file are listed at once, before any data is read.

kind = "env_to_module"       # or "module_to_env", "learner"
defaults = true              # add the default pieces of that kind
[[pieces]]
name = "frame_stacking"      # a registered piece, and its options
num_frames = 4
[[pieces]]
use = "my_package.pieces:MyPiece"   # or a builder function; imported because this file names it
"""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Final

from offline_cli.connectors.common.batching import AgentToModuleMapping
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.piece_makers import KINDS, Kind, constructed, custom_pieces, kind_mistakes, maker_of, snake
from offline_cli.connectors.piece_options import (
    AS_LEARNER,
    SPACES,
    Maker,
    Signature,
    option_mistakes,
    signature_of,
    what_it_wants,
)
from offline_cli.errors import BadConfig, MissingPackage, OfflineCliError, SpaceMismatch
from offline_cli.files.local_files import not_found
from offline_cli.json_documents import deeper_than, load_schema, mistakes
from offline_cli.spaces import Space

__all__ = ["PieceEntry", "PipelineFile", "Setting", "load_pipeline", "parse_pipeline", "pipeline_of", "read_pipeline"]

SCHEMA: Final = "pipeline.v1.json"
MAX_DEPTH: Final = 32
MAX_PIECES: Final = 100  # every one is made again for each that comes after it
PLACES: Final = ("before", "after")
ONLY_MODULE_TO_ENV: Final = ("normalize_actions", "clip_actions")
MULTI_AGENT: Final = "multi_agent"  # an option of many pieces, which follows from the setting
PAGE: Final = "docs/connectors.md lists the pieces and shows such files"


@dataclass(frozen=True, slots=True)
class Setting:
    """What a pipeline is built for: the setting."""

    observation_space: Space
    action_space: Space
    env: Any = None  # the environment that is played, for builders; None: there is none
    device: Any = None  # of tensors; None: the CPU
    num_envs: int = 1
    mapping: AgentToModuleMapping | None = None  # which agent plays with which module; None: a single agent
    action_scale: str | None = None  # "env" | "normalized": of what the policy puts out; None: not known


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
    packages `plugins`, which the user has named; no other code is imported for it.

    Raises BadConfig with every mistake in `details["problems"]`, MissingPackage.
    """
    if deeper_than(document, MAX_DEPTH):
        raise BadConfig(f"nested deeper than {MAX_DEPTH}", where=where, fix=PAGE)
    if isinstance(document.get("pieces"), list) and len(document["pieces"]) > MAX_PIECES:
        raise BadConfig(f"{len(document['pieces'])} pieces, and a pipeline has at most {MAX_PIECES}", where=where, fix=PAGE)
    problems = _key_mistakes(document)
    if kind is not None and document.get("kind") in KINDS and document["kind"] != kind:
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


def _key_mistakes(document: Mapping[str, Any]) -> list[str]:
    """Mistakes of the file itself, those of single pieces included where the schema knows of them."""
    known = load_schema(SCHEMA)["properties"]
    found = []
    for name in document.keys() - known.keys():
        near = get_close_matches(name, known, n=1)
        hint = f", did you mean '{near[0]}'?" if near else f" (there are: {', '.join(known)})"
        found.append(f"unknown key '{name}'{hint}")
    found += mistakes({name: value for name, value in document.items() if name in known}, SCHEMA)
    if document.get("kind") in KINDS and document["kind"] != "module_to_env":
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
        maker = maker_of(piece, label, named)
    except BadConfig as err:
        problems.append(f"{label}: {err.what_in_one_line} ({err.fix})")
        return None
    signature = signature_of(maker)
    options = {name: value for name, value in piece.items() if name not in ("name", "use", *PLACES)}
    found = option_mistakes(signature, options) + kind_mistakes(maker, signature, kind)
    if all(place in piece for place in PLACES):
        found.append("before and after: give one of the two")
    problems += [f"{label}: {mistake}" for mistake in found]
    return PieceEntry(label, maker, signature, options, piece.get("before"), piece.get("after"))


# ---- from a checked file to the pipeline ----


def assembled(file: PipelineFile, setting: Setting) -> ConnectorPipelineV2:
    """The pipeline. Raises BadConfig listing every piece that cannot be made, and SpaceMismatch for the first misfit."""
    try:
        made = _made(file, setting)
        pipeline = _with_defaults(file, setting, [piece for entry, piece in made if not (entry.before or entry.after)])
        _placed(file, pipeline, [(entry, piece) for entry, piece in made if entry.before or entry.after])
    except SpaceMismatch as err:
        err.where = f"{file.where}, {err.where}"
        raise
    return pipeline


# ---- pieces ----


def _made(file: PipelineFile, setting: Setting) -> list[tuple[PieceEntry, ConnectorV2]]:
    """Each entry's piece or pieces, made in order: some want to know the spaces that those before them lead to."""
    found: list[tuple[PieceEntry, ConnectorV2]] = []
    problems: list[str] = []
    for entry in file.pieces:
        try:
            before = ConnectorPipelineV2(setting.observation_space, setting.action_space, connectors=[p for _, p in found])
            found += [(entry, piece) for piece in _pieces(entry, file, setting, before)]
        except (SpaceMismatch, MissingPackage):
            raise
        except OfflineCliError as err:
            problems.append(f"{entry.label}: {err.what_in_one_line} ({err.fix})")
        except Exception as err:  # noqa: BLE001  a constructor may raise whatever it likes at options that it minds
            problems.append(f"{entry.label}: {what_it_wants(err)}")
    if problems:
        raise BadConfig.of(problems, where=file.where, fix="fix the options of these pieces")
    return found


def _pieces(entry: PieceEntry, file: PipelineFile, setting: Setting, before: ConnectorPipelineV2) -> list[ConnectorV2]:
    given = dict(entry.options)
    if entry.signature.takes_as_learner:
        given[AS_LEARNER] = file.kind == "learner"
    if MULTI_AGENT in entry.signature.options and setting.mapping is not None:
        given.setdefault(MULTI_AGENT, True)
    maker: Any = functools.partial(entry.maker, **given)
    spaces = dict(zip(SPACES, (before.observation_space, before.action_space), strict=True))
    if inspect.isclass(entry.maker):
        maker = constructed(entry.maker, given, {name: spaces[name] for name in entry.signature.spaces}, label=entry.label)
    return custom_pieces(
        maker,
        file.kind,
        spaces[SPACES[0]] or setting.observation_space,
        spaces[SPACES[1]] or setting.action_space,
        env=setting.env,
        device=setting.device,
        num_envs=setting.num_envs,
    )


# ---- the whole ----


def _with_defaults(file: PipelineFile, setting: Setting, pieces: list[ConnectorV2]) -> ConnectorPipelineV2:
    from offline_cli.connectors.env_to_module.default_pipeline import env_to_module_pipeline
    from offline_cli.connectors.learner.default_pipeline import learner_pipeline
    from offline_cli.connectors.module_to_env.default_pipeline import module_to_env_pipeline

    spaces = setting.observation_space, setting.action_space
    if file.kind == "env_to_module":
        return env_to_module_pipeline(
            *spaces,
            custom=pieces,
            mapping=setting.mapping,
            device=setting.device,
            add_default_connectors_to_env_to_module_pipeline=file.defaults,
        )
    if file.kind == "module_to_env":
        normalize, clip = _scaling(file, setting)
        return module_to_env_pipeline(
            *spaces,
            custom=pieces,
            multi_agent=setting.mapping is not None,
            normalize_actions=normalize,
            clip_actions=clip,
            add_default_connectors_to_module_to_env_pipeline=file.defaults,
        )
    return learner_pipeline(
        *spaces,
        custom=pieces,
        mapping=setting.mapping,
        device=setting.device,
        add_default_connectors_to_learner_pipeline=file.defaults,
    )


def _scaling(file: PipelineFile, setting: Setting) -> tuple[bool, bool]:
    """Whether to stretch actions to the bounds, and whether to clip them to those."""
    normalize = setting.action_scale != "env" if file.normalize_actions is None else file.normalize_actions
    return normalize, (not normalize) if file.clip_actions is None else file.clip_actions


def _placed(file: PipelineFile, pipeline: ConnectorPipelineV2, entries: list[tuple[PieceEntry, ConnectorV2]]) -> None:
    """Put pieces before or after others by name. Raises BadConfig with every name that no piece has."""
    problems = []
    for entry, piece in entries:
        names = {snake(name): name for name, _ in pipeline.named()}
        anchor = names.get(snake(entry.before or entry.after or ""))
        if anchor is None:
            problems.append(f"{entry.label}: no piece {entry.before or entry.after!r} among {list(names.values())}")
        elif entry.before:
            pipeline.insert_before(anchor, piece)
        else:
            pipeline.insert_after(anchor, piece)
    if problems:
        raise BadConfig.of(problems, where=file.where, fix="name a piece that the pipeline has")
