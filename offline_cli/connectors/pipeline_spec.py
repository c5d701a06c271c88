"""PipelineSpec: the specification of a pipeline, from a file, Python objects or a run folder, or the default.

A spec holds the pieces, the kind of pipeline, the origin (for errors), and the learned state of the pieces. `build` creates a
pipeline for given spaces (`Setting`), any number of times. Pieces given as objects are copied for each build, so that no
learned state leaks from one run, or one round of playing, into the next.

A pipeline file is TOML (docs/howto/pipelines.md). All mistakes in it are reported at once, before data is read. The user's own
file may import any code; a run folder only our own pieces, and packages that the user named.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offline_cli.connectors.common.batching import AgentToModuleMapping
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import (
    AS_LEARNER,
    SPACES,
    ConnectorV2,
    Maker,
    Signature,
    option_mistakes,
    signature_of,
    state_from_bytes,
    state_to_bytes,
    what_it_wants,
)
from offline_cli.connectors.env_to_module.observation_preprocessor import default_pieces as default_pieces_beside
from offline_cli.connectors.env_to_module.observation_preprocessor import env_to_module_pipeline
from offline_cli.connectors.learner.added_columns import default_pieces, learner_pipeline
from offline_cli.connectors.module_to_env.default_pipeline import module_to_env_pipeline
from offline_cli.connectors.piece_makers import KINDS, Custom, Kind, custom_pieces, home_of, imported, registered
from offline_cli.errors import BadConfig, BadPiece, MissingPackage, OfflineCliError, SpaceMismatch, StorageNotFound
from offline_cli.schema_files import toml_schema
from offline_cli.spaces import Space

__all__ = [
    "Given",
    "PieceEntry",
    "PipelineSpec",
    "PlayPipelines",
    "Setting",
    "added_pieces",
    "notes_on_export",
    "pipeline_schema",
]

MULTI_AGENT: Final = "multi_agent"  # an option of many pieces, set from the setting
PLACE: Final = "learner pipeline"
Place = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Setting:
    """Spaces, environment and device for building a pipeline."""

    observation_space: Space
    action_space: Space
    env: Any = None  # the played environment, for builders
    device: Any = None  # of tensors; None: the CPU
    num_envs: int = 1
    mapping: AgentToModuleMapping | None = None  # module of each agent; None: a single agent
    action_scale: str | None = None  # scale of the policy's actions: "env" or "normalized"; None: unknown


@dataclass(frozen=True, slots=True)
class PieceEntry:
    """One validated `[[pieces]]` entry of a file."""

    label: str  # for errors: `pieces[0] (frame_stacking)`
    maker: Maker
    signature: Signature
    options: Mapping[str, Any]

    def made(self, kind: Kind, setting: Setting, before: ConnectorPipelineV2) -> list[ConnectorV2]:
        """Build the piece, or pieces, after those of `before`, whose output spaces some pieces need."""
        given = dict(self.options)
        if self.signature.takes_as_learner:
            given[AS_LEARNER] = kind == "learner"
        if MULTI_AGENT in self.signature.options and setting.mapping is not None:
            given.setdefault(MULTI_AGENT, True)
        spaces = before.observation_space or setting.observation_space, before.action_space or setting.action_space
        given |= {name: space for name, space in zip(SPACES, spaces, strict=True) if name in self.signature.spaces}
        maker: Any = functools.partial(self.maker, **given)
        beside = {"env": setting.env, "device": setting.device, "num_envs": setting.num_envs}
        return custom_pieces(maker() if inspect.isclass(self.maker) else maker, kind, *spaces, **beside)


@dataclass(frozen=True, eq=False)
class PipelineSpec:
    """Pieces from a file (`document`), as objects (`custom`), or neither: the default pieces only."""

    kind: Kind
    document: Mapping[str, Any] | None = None  # content of the file
    custom: Custom = None
    where: str = "pipeline"  # origin of the document, for errors
    plugins: Collection[str] | None = None  # packages that the document may import; None: any, the user named the file
    names: tuple[str, ...] = ()  # of all pieces of the trained pipeline, default ones included
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)  # their learned state by name

    # ---- construction ----

    @classmethod
    def of(cls, given: Given, *kinds: Kind) -> PipelineSpec:
        """From the user's argument: a file of one of `kinds`, or objects for the first of them. Raises like `from_file`."""
        if isinstance(given, (str, PathLike)):
            return cls.from_file(given, *kinds)
        if not isinstance(given, PipelineSpec):
            return cls(kinds[0], custom=given)
        if given.document is None:
            return replace(given, kind=kinds[0])
        return cls.from_document(given.document, *kinds, where=given.where, plugins=given.plugins)

    @classmethod
    def from_file(cls, path: str | PathLike[str], *kinds: Kind, plugins: Collection[str] | None = None) -> PipelineSpec:
        """Read and validate the file at `path`. Raises StorageNotFound, and like `from_document`."""
        try:
            document = tomllib.loads(Path(path).read_text("utf-8"))
        except (FileNotFoundError, IsADirectoryError) as err:
            raise StorageNotFound("no such pipeline file", where=str(path), fix="check the path") from err
        except (ValueError, RecursionError) as err:  # ValueError: TOMLDecodeError, not UTF-8, an invalid date
            raise BadConfig(f"not TOML: {err}", where=str(path), fix="see https://toml.io for the syntax") from err
        return cls.from_document(document, *kinds, where=str(path), plugins=plugins)

    @classmethod
    def from_document(
        cls, document: Mapping[str, Any], *kinds: Kind, where: str, plugins: Collection[str] | None = None
    ) -> PipelineSpec:
        """Validate the content of a file. `kinds`: allowed kinds; none: any.

        Raises BadConfig with every mistake in `details["problems"]`, MissingPackage.
        """
        _entries(document, kinds, where=where, plugins=plugins)
        return cls(document["kind"], dict(document), where=where, plugins=plugins)

    @classmethod
    def from_json(
        cls, stored: Mapping[str, Any], state: Mapping[str, Any], *, where: str, plugins: Collection[str]
    ) -> PipelineSpec:
        """From `to_json` of a run folder. Pieces are validated and imported when they are needed.

        Raises KeyError, ValueError for other JSON.
        """
        document, names = stored["document"], stored["pieces"]
        if not isinstance(document, (dict, type(None))) or not isinstance(names, list):
            raise ValueError(f"{where} describes no pipeline")
        return cls("learner", document, where=where, plugins=tuple(plugins), names=tuple(map(str, names)), state=state)

    def to_json(self) -> dict[str, Any]:
        """JSON values, without the state. Raises BadConfig for options that JSON cannot represent."""
        content = {"document": self.document, "pieces": list(self.names)}
        try:
            json.dumps(content)
        except TypeError as err:
            what = f"options of pieces cannot be saved with the policy: {err}"
            raise BadConfig(what, where=self.where, fix="write dates and times as strings") from err
        return content

    def state_bytes(self) -> bytes:
        """The learned state of the pieces, serialized."""
        return state_to_bytes(self.state, where=self.where)

    def trained(self, pipeline: ConnectorPipelineV2) -> PipelineSpec:
        """A copy with the learned state of `pipeline`, which was built from it. Raises BadPiece if a state cannot be saved."""
        state = state_from_bytes(state_to_bytes(pipeline.get_state(), where=PLACE), where=PLACE)
        return replace(self, custom=None, where=PLACE, names=tuple(name for name, _ in pipeline.named()), state=state)

    # ---- properties ----

    @property
    def is_default(self) -> bool:
        """Whether it has the default pieces only."""
        return self.document is None and self.custom is None

    def _objects(self) -> list[Any]:
        """The given Python objects: pieces, or a builder."""
        return [*self.custom] if isinstance(self.custom, Sequence) else [] if self.custom is None else [self.custom]

    @property
    def name(self) -> str:
        """Identity for `--resume`: piece names and a hash of the file's content, or names of Python objects."""
        if self.document is not None:
            names = ", ".join(str(piece.get("name", piece.get("use"))) for piece in self.document.get("pieces", []))
            content = json.dumps(self.document, sort_keys=True, default=str).encode()
            return f"{names or 'no pieces'} (file {hashlib.blake2b(content, digest_size=6).hexdigest()})"
        if self.custom is None:
            return ""
        pieces = [type(one).__name__ for one in self._objects() if isinstance(one, ConnectorV2)]
        makers = [one if inspect.isroutine(one) else type(one) for one in self._objects() if not isinstance(one, ConnectorV2)]
        return ", ".join([*pieces, *(f"{one.__module__}:{one.__qualname__}" for one in makers)]) or "no pieces"

    @property
    def in_words(self) -> str:
        """Description for users; a run folder knows no more than "Python objects" about objects."""
        return self.name if self.document is not None else "Python objects"

    def entries(self) -> tuple[PieceEntry, ...]:
        """The document's validated pieces. Raises like `from_document`."""
        kinds = (self.kind,)
        return () if self.document is None else _entries(self.document, kinds, where=self.where, plugins=self.plugins)

    def code(self) -> list[Any]:
        """Classes and functions that make the pieces, or the pieces themselves. Raises like `entries`."""
        return [entry.maker for entry in self.entries()] or self._objects()

    def plays_alone(self, pieces: Iterable[ConnectorV2]) -> bool:
        """Whether a policy trained with these `pieces` plays without any.

        True without a spec, or for Python objects that are our own learner-only pieces. A file declares its pieces for playing.
        """
        default = {type(piece) for piece in default_pieces()}
        for_learners = (type(piece) in default or home_of(type(piece)) == "learner" for piece in pieces)
        return self.document is None and all(for_learners)

    def beside_environment(self) -> PipelineSpec:
        """The env-to-module pipeline of a learner's file: only the pieces that work on both sides.

        So frame stacking, or a filter, is declared once. Piece names, and therefore states, are the same on both sides. The
        default pieces are those of env-to-module, even if the file lists the learner's. Raises like `entries`.
        """
        if self.document is None or self.kind == "env_to_module":
            return self
        listed = self.document.get("defaults", True)
        default = () if listed else {type(piece) for piece in default_pieces_beside(None, None)}
        pairs = zip(self.document.get("pieces", []), self.entries(), strict=True)
        both = [piece for piece, entry in pairs if entry.signature.takes_as_learner and entry.maker not in default]
        return replace(self, kind="env_to_module", document={"kind": "env_to_module", "pieces": both})

    # ---- building ----

    def build(self, setting: Setting) -> ConnectorPipelineV2:
        """Build the pipeline and compute its spaces. Raises SpaceMismatch, naming the piece; BadConfig for other mistakes."""
        if self.document is None:
            return self._whole(setting, self._copied())
        try:
            return self._whole(setting, self._made(setting))
        except SpaceMismatch as err:
            err.where = f"{self.where}, {err.where}"
            raise

    def _copied(self) -> Custom:
        """Copies of the given pieces; a builder is returned unchanged. Raises BadPiece for pieces that cannot be copied."""
        if callable(self.custom) and not isinstance(self.custom, ConnectorV2):
            return self.custom
        try:
            return copy.deepcopy(self.custom)
        except Exception as err:
            what = f"the pieces cannot be copied: {err!r}"
            raise BadPiece(what, where="pipeline", fix="pass a function that builds them") from err

    def _made(self, setting: Setting) -> list[ConnectorV2]:
        """The pieces of all entries, in order. Raises SpaceMismatch, MissingPackage; BadConfig for any other exception."""
        chain = ConnectorPipelineV2(setting.observation_space, setting.action_space)
        for entry in self.entries():
            try:
                for piece in entry.made(self.kind, setting, chain):
                    chain.append(piece)
            except (SpaceMismatch, MissingPackage):
                raise
            except Exception as err:  # a constructor may raise anything for bad options
                message = f"{err.what_in_one_line} ({err.fix})" if isinstance(err, OfflineCliError) else what_it_wants(err)
                raise BadConfig.of(
                    [f"{entry.label}: {message}"], where=self.where, fix="fix the options of this piece"
                ) from err
        return chain.connectors

    def _whole(self, setting: Setting, custom: Custom) -> ConnectorPipelineV2:
        """The pipeline of these pieces and the default ones, unless the file turns those off."""
        says, spaces = self.document or {}, (setting.observation_space, setting.action_space)
        options: dict[str, Any] = {"custom": custom}
        options[f"add_default_connectors_to_{self.kind}_pipeline"] = says.get("defaults", True)
        if self.kind == "learner":
            return learner_pipeline(*spaces, mapping=setting.mapping, device=setting.device, **options)
        options |= {"env": setting.env, "num_envs": setting.num_envs}
        if self.kind == "env_to_module":
            return env_to_module_pipeline(*spaces, mapping=setting.mapping, device=setting.device, **options)
        normalize = setting.action_scale != "env"  # "normalized", or unknown
        options |= {"normalize_actions": normalize, "clip_actions": not normalize}
        return module_to_env_pipeline(*spaces, multi_agent=setting.mapping is not None, **options)


# ---- pipeline files ----


class PieceDocument(BaseModel):
    """One piece: a name or an import path, and its options, the named arguments of its class."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: Place | None = Field(None, description="A registered piece, such as frame_stacking, built-in or from a package.")
    use: Annotated[str, Field(pattern="^[^.:][^:]*:[^:]+$")] | None = Field(
        None,
        description="A class derived from ConnectorV2, or a function that builds pieces, as package.module:Class. Imported "
        "because this file names it.",
    )


class PipelineDocument(BaseModel):
    """Pieces of a learner, env-to-module or module-to-env pipeline, beside the default ones."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Kind = Field(description="Kind of pipeline.")
    defaults: bool = Field(
        True,
        description="Add the default pieces of this kind: after the listed ones, in module_to_env around them.",
    )
    pieces: list[PieceDocument] = Field([], description="The pieces, in order.")


def document_mistakes(document: Mapping[str, Any]) -> list[str]:
    """Schema violations of a file's content, each with its key; empty if it is valid."""
    try:
        PipelineDocument.model_validate(dict(document))
    except ValidationError as error:
        places = [".".join(map(str, one["loc"])) for one in error.errors()]
        return [
            f"unknown key '{place}'"
            if one["type"] == "extra_forbidden"
            else f"{place}: {one['msg']}, not {str(one['input'])[:60]!r}"
            for place, one in zip(places, error.errors(), strict=True)
        ]
    return []


def pipeline_schema() -> dict[str, Any]:
    """The JSON Schema of pipeline files, schemas/pipeline.v1.json."""
    return toml_schema(PipelineDocument, "offline-cli/pipeline.v1.json", title="Connector pipeline")


def _entries(
    document: Mapping[str, Any], kinds: Collection[Kind], *, where: str, plugins: Collection[str] | None
) -> tuple[PieceEntry, ...]:
    """The validated pieces of a file's content. Raises like `PipelineSpec.from_document`."""
    listed, kind = document.get("pieces", []), document.get("kind")
    problems = document_mistakes(document)
    if kinds and kind in KINDS and kind not in kinds:
        needed = " or ".join(f"'{one}'" for one in kinds)
        problems.append(f"kind: this pipeline is of kind '{kind}', but {needed} is needed here")
    entries = []
    for index, piece in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(piece, Mapping):
            entry, wrong = _entry(piece, index, kind, plugins)
            problems += wrong
            entries += [entry] if entry is not None else []
    if problems:
        raise BadConfig.of(problems, where=where, fix='see "The pieces" in the documentation')
    return tuple(entries)


def _entry(
    piece: Mapping[str, Any], index: int, kind: Any, named: Collection[str] | None
) -> tuple[PieceEntry | None, list[str]]:
    """The piece (None if it is unknown) and its mistakes. `named`: see `plugins.plugin`."""
    given = piece.get("name", piece.get("use"))
    label = f"pieces[{index}]" + (f" ({given})" if isinstance(given, str) else "")
    if ("name" in piece) == ("use" in piece):
        return None, [f'{label}: give either name = "..." or use = "package.module:Class"']
    if not isinstance(given, str):
        return None, []  # `document_mistakes` reports it
    if "use" in piece and named is not None:
        return None, [f"{label}: {piece['use']!r} is not imported from a run folder (name it in your own pipeline file)"]
    try:
        maker = imported(given, where=label) if "use" in piece else registered(given, named=named)
    except BadConfig as err:
        return None, [f"{label}: {err.what_in_one_line} ({err.fix})"]
    signature, home = signature_of(maker), home_of(maker)
    options = {name: value for name, value in piece.items() if name not in PieceDocument.model_fields}
    wrong = option_mistakes(signature, options)
    if kind in KINDS and home not in (None, "common", kind) and not (kind == "learner" and signature.takes_as_learner):
        wrong.append(f"belongs to pipelines of kind '{home}', but this pipeline is of kind '{kind}'")
    return PieceEntry(label, maker, signature, options), [f"{label}: {mistake}" for mistake in wrong]


Given = str | PathLike[str] | PipelineSpec | Custom
"""The user's pipeline: path of a file, specification, pieces, a builder, or None."""


@dataclass(frozen=True, slots=True, eq=False)
class PlayPipelines:
    """The pipelines on both sides of a module, built for one environment's spaces."""

    env_to_module: ConnectorPipelineV2
    module_to_env: ConnectorPipelineV2

    def pieces(self) -> list[ConnectorV2]:
        """The pieces of both pipelines, in order."""
        return [*self.env_to_module.pieces(), *self.module_to_env.pieces()]

    def freeze(self) -> None:
        """Freeze every piece: none learns any more."""
        self.env_to_module.freeze()
        self.module_to_env.freeze()


def added_pieces(pipeline: ConnectorPipelineV2) -> list[tuple[str, ConnectorV2]]:
    """The non-default pieces of an env-to-module pipeline, by name."""
    default = {type(piece) for piece in default_pieces_beside(None, None)}
    return [(name, piece) for name, piece in pipeline.named() if type(piece) not in default]


def notes_on_export(trained_through: PipelineSpec, setting: Setting) -> list[str]:
    """Notes, before training, on pieces that prevent export to ONNX."""
    if trained_through.document is None:  # Python objects: `export` gets them again, or refuses
        return []
    try:
        pieces = added_pieces(trained_through.beside_environment().build(setting))
    except OfflineCliError:  # reported when the policy plays
        return []
    lacking = [name for name, piece in pieces if piece.to_torch() is None]
    return [f"the policy cannot be exported to ONNX: piece {name} has no `to_torch`" for name in lacking]
