"""PipelineSpec: a pipeline before it is built, whoever gave it: a user's file, his objects, a run folder, or nobody.

A spec says which pieces belong on which side (`kind`), where that is from, and what the pieces had learned. It is built for
spaces (`Setting`), as often as needed. Pieces that are given as objects serve as patterns: each pipeline is built from copies
of them, so that nothing that one run, or one round of playing, learned is in the next. Between processes a file's content
travels, and each process imports the code that it names.

A file that the user named may name code. What a run folder says may name our own pieces, and packages that the user named.

`frozen_with` gives pieces what they learned elsewhere; `check_streamable` says which pieces may see the episodes in parts.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, Final

from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2, state_from_bytes, state_to_bytes
from offline_cli.connectors.env_to_module.default_pipeline import default_pieces as default_pieces_beside
from offline_cli.connectors.env_to_module.default_pipeline import env_to_module_pipeline
from offline_cli.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from offline_cli.connectors.learner.default_pipeline import default_pieces, learner_pipeline
from offline_cli.connectors.module_to_env.default_pipeline import module_to_env_pipeline
from offline_cli.connectors.piece_makers import Custom, Kind
from offline_cli.connectors.pipeline_files import (
    PieceEntry,
    Setting,
    document_of,
    entries_of,
    made_pieces,
    place_pieces,
    read_document,
)
from offline_cli.errors import BadConfig, BadPiece, SpaceMismatch

__all__ = ["Given", "PipelineSpec", "PlayPipelines", "Setting", "check_streamable", "frozen_with", "learns", "load_pipeline"]

OURS: Final = "offline_cli."
LEARNERS_HOME: Final = "offline_cli.connectors.learner."  # our pieces that work on the learner's side alone
PLACE: Final = "learner pipeline"


@dataclass(frozen=True, eq=False)
class PipelineSpec:
    """A file's pieces (`document`), objects (`custom`), or neither: the default pieces alone."""

    kind: Kind
    document: Mapping[str, Any] | None = None  # what a file says
    custom: Custom = None
    where: str = "pipeline"  # what the document is from, for errors
    plugins: Collection[str] | None = None  # packages whose code the document may name; None: any, the user named the file
    names: tuple[str, ...] = ()  # of all pieces that it was built to for training, default ones included
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)  # what these had learned, by name
    checked: tuple[PieceEntry, ...] | None = field(default=None, repr=False)  # the document's pieces; None: see `entries`

    # ---- from what ----

    @classmethod
    def of(cls, given: Given, *kinds: Kind) -> PipelineSpec:
        """What a user gave: a file of one of `kinds`, or objects for the first of them. Raises as `from_file` does."""
        if isinstance(given, (str, PathLike)):
            return cls.from_file(given, *kinds)
        if not isinstance(given, PipelineSpec):
            return cls(kinds[0], custom=given)
        if given.document is None:
            return replace(given, kind=kinds[0])
        return cls.from_document(given.document, *kinds, where=given.where, plugins=given.plugins)

    @classmethod
    def from_file(cls, path: str | PathLike[str], *kinds: Kind, plugins: Collection[str] | None = None) -> PipelineSpec:
        """The file at `path`, checked. Raises StorageNotFound, and what `from_document` raises."""
        return cls.from_document(read_document(path), *kinds, where=str(path), plugins=plugins)

    @classmethod
    def from_bytes(cls, text: bytes, *kinds: Kind, where: str, plugins: Collection[str] | None = None) -> PipelineSpec:
        """What the bytes of such a file say, checked. Raises what `from_document` raises."""
        return cls.from_document(document_of(text, where=where), *kinds, where=where, plugins=plugins)

    @classmethod
    def from_document(
        cls, document: Mapping[str, Any], *kinds: Kind, where: str, plugins: Collection[str] | None = None
    ) -> PipelineSpec:
        """From the content of a file, checked. `kinds`: those that serve here; none: any.

        Raises BadConfig with every mistake in `details["problems"]`, MissingPackage.
        """
        entries = entries_of(document, kinds, where=where, plugins=plugins)
        return cls(document["kind"], dict(document), where=where, plugins=plugins, checked=entries)

    @classmethod
    def from_json(
        cls, told: Mapping[str, Any], state: Mapping[str, Any], *, where: str, plugins: Collection[str]
    ) -> PipelineSpec:
        """What `to_json` gave, of a run folder: nothing of it is looked at, or imported, until it is needed.

        Raises KeyError, ValueError for what is none.
        """
        document, names = told["document"], told["pieces"]
        if not isinstance(document, (dict, type(None))) or not isinstance(names, list):
            raise ValueError(f"{where} describes no pipeline")
        return cls("learner", document, where=where, plugins=tuple(plugins), names=tuple(map(str, names)), state=state)

    def to_json(self) -> dict[str, Any]:
        """JSON values, with the hash of `state_bytes`. Raises BadConfig for a file with options that JSON does not have."""
        digest = hashlib.sha256(self.state_bytes()).hexdigest()
        told = {"document": self.document, "pieces": list(self.names), "state_sha256": digest}
        try:
            json.dumps(told)
        except TypeError as err:
            what = f"options of pieces that cannot be kept with the policy: {err}"
            raise BadConfig(what, where=self.where, fix="give dates and times as text") from err
        return told

    def state_bytes(self) -> bytes:
        """What the pieces had learned, as a file."""
        return state_to_bytes(self.state, where=self.where)

    def trained(self, pipeline: ConnectorPipelineV2) -> PipelineSpec:
        """With what the pieces of `pipeline`, built from this, have learned. Raises BadPiece where a state cannot be saved."""
        state = state_from_bytes(state_to_bytes(pipeline.get_state(), where=PLACE), where=PLACE)
        return replace(self, custom=None, where=PLACE, names=tuple(name for name, _ in pipeline.named()), state=state)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "checked": None}  # builders need not travel: the names of their code do

    # ---- what it is ----

    @property
    def is_default(self) -> bool:
        """Whether nothing was given."""
        return self.document is None and self.custom is None

    @property
    def name(self) -> str:
        """What a run that is resumed has to share: pieces and a hash of the file's content, or names of Python objects."""
        if self.document is not None:
            names = ", ".join(str(piece.get("name", piece.get("use"))) for piece in self.document.get("pieces", []))
            content = json.dumps(self.document, sort_keys=True, default=str).encode()
            return f"{names or 'no pieces'} (file {hashlib.blake2b(content, digest_size=6).hexdigest()})"
        if self.custom is None:
            return ""
        if callable(self.custom) and not isinstance(self.custom, ConnectorV2):
            return f"{self.custom.__module__}:{getattr(self.custom, '__qualname__', type(self.custom).__qualname__)}"
        pieces = [self.custom] if isinstance(self.custom, ConnectorV2) else self.custom
        return ", ".join(type(piece).__name__ for piece in pieces) or "no pieces"

    @property
    def in_words(self) -> str:
        """What a policy plays through. Of Python objects what is known of them in a run folder."""
        return self.name if self.document is not None else "Python objects"

    def entries(self) -> tuple[PieceEntry, ...]:
        """The document's pieces, found and checked. Raises as `from_document` does."""
        if self.checked is not None or self.document is None:
            return self.checked or ()
        return entries_of(self.document, (self.kind,), where=self.where, plugins=self.plugins)

    def code(self) -> list[Any]:
        """What makes the pieces: classes and functions, or the pieces themselves. Raises as `entries` does."""
        custom = self.custom if isinstance(self.custom, Sequence) else [self.custom]
        return [entry.maker for entry in self.entries()] or [one for one in custom if one is not None]

    def plays_alone(self, pieces: Iterable[ConnectorV2]) -> bool:
        """Whether what learns through the pipeline, which is made of `pieces`, plays without pieces.

        So it is where nothing is given, or Python objects that are all our own and work for learners alone. A file says itself
        what belongs beside the environment.
        """
        default = {type(piece) for piece in default_pieces()}
        ours = (type(piece) in default or type(piece).__module__.startswith(LEARNERS_HOME) for piece in pieces)
        return self.document is None and all(ours)

    def beside_environment(self) -> PipelineSpec:
        """The env-to-module pipeline that belongs to a learner's file: the pieces that work on both sides, and no others.

        So frame stacking, or a filter, is declared once. Names of pieces, and so their states, are the same on both sides. The
        default pieces are the env-to-module ones, also where the learner's are listed one by one. Raises as `entries` does.
        """
        if self.document is None or self.kind == "env_to_module":
            return self
        entries = list(zip(self.document.get("pieces", []), self.entries(), strict=True))
        both = [(piece, entry) for piece, entry in entries if entry.signature.takes_as_learner]
        if not self.document.get("defaults", True):
            default = {type(piece) for piece in default_pieces_beside(None, None)}
            both = [(piece, entry) for piece, entry in both if entry.maker not in default]
        document = {"kind": "env_to_module", "pieces": [piece for piece, _ in both]}
        return replace(self, kind="env_to_module", document=document, checked=tuple(entry for _, entry in both))

    # ---- to what ----

    def build(self, setting: Setting) -> ConnectorPipelineV2:
        """The pipeline, its spaces worked out. Raises SpaceMismatch naming the piece, and BadConfig for all other mistakes."""
        if self.document is None:
            return self._whole(setting, self._copied())
        try:
            made = made_pieces(self.entries(), self.kind, setting, where=self.where)
            pipeline = self._whole(setting, [piece for entry, piece in made if not entry.place])
            place_pieces(pipeline, [(entry, piece) for entry, piece in made if entry.place], where=self.where)
        except SpaceMismatch as err:
            err.where = f"{self.where}, {err.where}"
            raise
        return pipeline

    def _copied(self) -> Custom:
        """The objects, with copies of pieces that are given as they are. Raises BadPiece for those that cannot be copied."""
        if callable(self.custom) and not isinstance(self.custom, ConnectorV2):
            return self.custom
        try:
            return copy.deepcopy(self.custom)
        except Exception as err:
            what = f"pieces that cannot be copied: {err!r}"
            raise BadPiece(what, where="pipeline", fix="give a function that builds them") from err

    def _whole(self, setting: Setting, custom: Custom) -> ConnectorPipelineV2:
        """These pieces among the default ones, unless a file turns those off."""
        says, spaces = self.document or {}, (setting.observation_space, setting.action_space)
        defaults = f"add_default_connectors_to_{self.kind}_pipeline"
        options: dict[str, Any] = {"custom": custom, defaults: says.get("defaults", True)}
        if self.kind == "learner":
            return learner_pipeline(*spaces, mapping=setting.mapping, device=setting.device, **options)
        options |= {"env": setting.env, "num_envs": setting.num_envs}
        if self.kind == "env_to_module":
            return env_to_module_pipeline(*spaces, mapping=setting.mapping, device=setting.device, **options)
        normalize = says.get("normalize_actions", setting.action_scale != "env")
        options |= {"normalize_actions": normalize, "clip_actions": says.get("clip_actions", not normalize)}
        return module_to_env_pipeline(*spaces, multi_agent=setting.mapping is not None, **options)


Given = str | PathLike[str] | PipelineSpec | Custom
"""A pipeline as a user gives it: the path of a file, a specification, pieces or a builder; None: nothing."""


def load_pipeline(
    path: str | PathLike[str], *, kind: Kind | None = None, plugins: Collection[str] | None = None, **setting: Any
) -> ConnectorPipelineV2:
    """The pipeline of a file for spaces of an environment or a dataset.

    `kind`: what the pipeline is needed as. `plugins`: see `PipelineSpec`. `setting`: fields of `Setting`: `observation_space`
    and `action_space`, and maybe env, device, num_envs, mapping, action_scale.

    Raises StorageNotFound; BadConfig with every mistake in `details["problems"]`; SpaceMismatch, naming the piece, what it got
    and what it wanted; MissingPackage.
    """
    kinds = () if kind is None else (kind,)
    return PipelineSpec.from_file(path, *kinds, plugins=plugins).build(Setting(**setting))


@dataclass(frozen=True, slots=True, eq=False)
class PlayPipelines:
    """The pipelines on both sides of a module, built for one environment's spaces."""

    env_to_module: ConnectorPipelineV2
    module_to_env: ConnectorPipelineV2

    def sides(self) -> dict[str, ConnectorPipelineV2]:
        """Both by name."""
        return {"env_to_module": self.env_to_module, "module_to_env": self.module_to_env}

    def get_state(self) -> dict[str, Any]:
        """What the pieces of both have learned, by side and name; empty: nothing."""
        return {side: state for side, pipeline in self.sides().items() if (state := pipeline.get_state())}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Have the pieces begin with what they had learned. Raises UnknownPiece for a name that no piece has."""
        for side, pipeline in self.sides().items():
            pipeline.set_state(state.get(side, {}))

    def merge_states(self, states: list[Mapping[str, Any]]) -> dict[str, Any]:
        """One state from those of runners that played side by side. Raises BadPiece where pieces cannot merge theirs."""
        merged = {
            side: pipeline.merge_states([state[side] for state in states if side in state])
            for side, pipeline in self.sides().items()
        }
        return {side: state for side, state in merged.items() if state}


# ---- what pieces have learned ----


def frozen_with(pipeline: ConnectorPipelineV2, state: Mapping[str, Any]) -> list[ConnectorV2]:
    """The pieces that have a part in `state`, by name, which they take over, and learn no more.

    Raises UnknownPiece for a name that no piece has, BadConfig for a piece that cannot stop learning.
    """
    pipeline.set_state(state)
    named = [piece for name, piece in pipeline.named() if name in state]
    found = [part for piece in named for part in (piece.pieces() if isinstance(piece, ConnectorPipelineV2) else [piece])]
    kinds = [type(piece) for piece in found if learns(piece) and type(piece).freeze is ConnectorV2.freeze]
    if kinds:
        what = f"{kinds[0].__name__} cannot keep what it learned elsewhere: it would learn on"
        raise BadConfig(what, where=PLACE, fix="override `freeze` (learn no more) in the class")
    for piece in found:
        piece.freeze()
    return found


# ---- episodes in parts ----


def check_streamable(pieces: Iterable[ConnectorV2]) -> None:
    """Raise BadConfig naming every piece that is not known to do with an episode what follows from that episode, and from what
    it has learned, alone. All of this package do; others have to say so (`ConnectorV2.per_episode`), and, where they
    have a state, be able to learn no more: the data is read more than once.
    """
    kinds: list[type[ConnectorV2]] = list(dict.fromkeys(map(type, pieces)))
    problems = [
        f"{kind.__name__} may need all episodes at once, and a stream has a part of them at a time"
        for kind in kinds
        if not _by_episode(kind)
    ]
    if problems:
        fix = "put `per_episode = True` into the class if each episode is changed by itself, or leave out --streaming"
        raise BadConfig.of(problems, where=PLACE, fix=fix)
    problems = [
        f"{kind.__name__} has a state, and would take it from every reading of a stream"
        for kind in kinds
        if _learns(kind) and (kind.freeze is ConnectorV2.freeze or kind.reset_state is ConnectorV2.reset_state)
    ]
    if problems:
        fix = "override `freeze` (learn no more) and `reset_state` (forget) in the class, or leave out --streaming"
        raise BadConfig.of(problems, where=PLACE, fix=fix)


def learns(piece: ConnectorV2) -> bool:
    """Whether the piece may learn from the episodes it sees: it has a state."""
    return _learns(type(piece))


def _learns(kind: type[ConnectorV2]) -> bool:
    return kind.get_state is not ConnectorV2.get_state


def _by_episode(kind: type[ConnectorV2]) -> bool:
    own_call = kind.__call__ is not SingleAgentObservationPreprocessor.__call__
    preprocessor = issubclass(kind, SingleAgentObservationPreprocessor) and not own_call
    return kind.__module__.startswith(OURS) or preprocessor or bool(vars(kind).get("per_episode", False))
