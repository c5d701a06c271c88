"""Pipeline files: TOML to checked entries, and these to pieces. All mistakes of a file are listed at once, before data is read.

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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
from offline_cli.json_documents import deeper_than, load_schema, mistakes
from offline_cli.spaces import Space
from offline_cli.storage.local_files import not_found

__all__ = ["PieceEntry", "Setting", "document_of", "entries_of", "made_pieces", "place_pieces", "read_document"]

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

    @property
    def place(self) -> str | None:
        """The name of the piece that it belongs beside; None: the usual place."""
        return self.before or self.after


def read_document(path: str | PathLike[str]) -> dict[str, Any]:
    """The content of the file at `path`. Raises StorageNotFound, BadConfig."""
    try:
        text = Path(path).read_bytes()
    except (FileNotFoundError, IsADirectoryError) as err:
        raise not_found(path, "no such pipeline file", where=str(path), fix="check the path") from err
    return document_of(text, where=str(path))


def document_of(text: bytes, *, where: str) -> dict[str, Any]:
    """What the bytes of such a file say. Raises BadConfig where they are not TOML."""
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as err:  # ValueError: TOMLDecodeError, text that is not UTF-8, an invalid date
        raise BadConfig(f"not TOML: {err}", where=where, fix="see https://toml.io for the syntax") from err


def entries_of(
    document: Mapping[str, Any], kinds: Collection[Kind], *, where: str, plugins: Collection[str] | None
) -> tuple[PieceEntry, ...]:
    """The pieces that a file's content names, found and checked. `kinds`: those that serve here; empty: any.

    `plugins`: see `PipelineSpec.plugins`. Raises BadConfig with every mistake in `details["problems"]`, MissingPackage.
    """
    if deeper_than(document, MAX_DEPTH):
        raise BadConfig(f"nested deeper than {MAX_DEPTH}", where=where, fix=PAGE)
    listed = document.get("pieces", [])
    if isinstance(listed, list) and len(listed) > MAX_PIECES:
        raise BadConfig(f"{len(listed)} pieces, and a pipeline has at most {MAX_PIECES}", where=where, fix=PAGE)
    problems, kind = _key_mistakes(document), document.get("kind")
    if kinds and kind in KINDS and kind not in kinds:
        needed = " or ".join(f"'{one}'" for one in kinds)
        problems.append(f"kind: this is a pipeline of kind '{kind}', and {needed} is needed here")
    entries = [
        _entry(piece, index, kind, plugins, problems)
        for index, piece in enumerate(listed if isinstance(listed, list) else [])
        if isinstance(piece, Mapping)
    ]
    if problems:
        raise BadConfig.of(problems, where=where, fix=PAGE)
    return tuple(entry for entry in entries if entry is not None)


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


# ---- from entries to pieces ----


def made_pieces(
    entries: Sequence[PieceEntry], kind: Kind, setting: Setting, *, where: str
) -> list[tuple[PieceEntry, ConnectorV2]]:
    """Each entry's piece or pieces, made in order: some want to know the spaces that those before them lead to.

    Raises SpaceMismatch for the first misfit, MissingPackage; BadConfig with every other piece that cannot be made.
    """
    found: list[tuple[PieceEntry, ConnectorV2]] = []
    problems: list[str] = []
    for entry in entries:
        try:
            before = ConnectorPipelineV2(setting.observation_space, setting.action_space, connectors=[p for _, p in found])
            found += [(entry, piece) for piece in _pieces(entry, kind, setting, before)]
        except (SpaceMismatch, MissingPackage):
            raise
        except OfflineCliError as err:
            problems.append(f"{entry.label}: {err.what_in_one_line} ({err.fix})")
        except Exception as err:  # noqa: BLE001  a constructor may raise whatever it likes at options that it minds
            problems.append(f"{entry.label}: {what_it_wants(err)}")
    if problems:
        raise BadConfig.of(problems, where=where, fix="fix the options of these pieces")
    return found


def _pieces(entry: PieceEntry, kind: Kind, setting: Setting, before: ConnectorPipelineV2) -> list[ConnectorV2]:
    given = dict(entry.options)
    if entry.signature.takes_as_learner:
        given[AS_LEARNER] = kind == "learner"
    if MULTI_AGENT in entry.signature.options and setting.mapping is not None:
        given.setdefault(MULTI_AGENT, True)
    maker: Any = functools.partial(entry.maker, **given)
    spaces = dict(zip(SPACES, (before.observation_space, before.action_space), strict=True))
    if inspect.isclass(entry.maker):
        maker = constructed(entry.maker, given, {name: spaces[name] for name in entry.signature.spaces}, label=entry.label)
    observations, actions = spaces[SPACES[0]] or setting.observation_space, spaces[SPACES[1]] or setting.action_space
    return custom_pieces(maker, kind, observations, actions, env=setting.env, device=setting.device, num_envs=setting.num_envs)


def place_pieces(pipeline: ConnectorPipelineV2, made: Sequence[tuple[PieceEntry, ConnectorV2]], *, where: str) -> None:
    """Put pieces before or after others by name. Raises BadConfig with every name that no piece has."""
    problems = []
    for entry, piece in made:
        names = {snake(name): name for name, _ in pipeline.named()}
        anchor = names.get(snake(entry.place or ""))
        if anchor is None:
            problems.append(f"{entry.label}: no piece {entry.place!r} among {list(names.values())}")
        elif entry.before:
            pipeline.insert_before(anchor, piece)
        else:
            pipeline.insert_after(anchor, piece)
    if problems:
        raise BadConfig.of(problems, where=where, fix="name a piece that the pipeline has")
