"""What a user gives for a pipeline: a file, pieces, or what builds them; and which pieces may see the episodes in parts.

Pieces that are given as they are serve as patterns: what is built has copies of them, so that nothing that one run, or one
round of playing, learned is in the next.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from os import PathLike
from typing import Any, Final, TypeVar

from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from offline_cli.connectors.learner.default_pipeline import default_pieces, learner_pipeline
from offline_cli.connectors.piece_makers import Custom, Kind
from offline_cli.connectors.pipeline_files import PipelineFile, Setting, read_pipeline
from offline_cli.errors import BadConfig, BadPiece
from offline_cli.spaces import Space

__all__ = ["Given", "GivenPipeline", "Side", "check_streamable", "copied", "learns", "read_given"]

OURS: Final = "offline_cli."
LEARNERS_HOME: Final = "offline_cli.connectors.learner."  # our pieces that work on the learner's side alone
PLACE: Final = "learner pipeline"

Given = str | PathLike[str] | Custom
"""A pipeline as a user gives it: the path of a file, pieces or a builder; None: nothing."""

Side = PipelineFile | Custom
"""The same, a file read."""

AnySide = TypeVar("AnySide", bound=Side)


@dataclass(frozen=True, slots=True, eq=False)
class GivenPipeline:
    """The learner pipeline of a run."""

    side: Side

    @classmethod
    def read(cls, given: Given) -> GivenPipeline:
        """Raises StorageNotFound, MissingPackage, BadConfig with every mistake of the file."""
        return cls(read_given(given, "learner"))

    @property
    def is_default(self) -> bool:
        """Whether nothing was given."""
        return self.side is None

    @property
    def document(self) -> Mapping[str, Any] | None:
        """The file's content; None: it was given as Python objects, or not at all."""
        return self.side.document if isinstance(self.side, PipelineFile) else None

    @property
    def name(self) -> str:
        """What a run that is resumed has to share: pieces and a hash of the file's content, or names of Python objects."""
        if self.side is None:
            return ""
        if isinstance(self.side, PipelineFile):
            names = ", ".join(str(piece.get("name", piece.get("use"))) for piece in self.side.document.get("pieces", []))
            return f"{names or 'no pieces'} (file {_hash(self.side.document)})"
        if callable(self.side) and not isinstance(self.side, ConnectorV2):
            return f"{self.side.__module__}:{getattr(self.side, '__qualname__', type(self.side).__qualname__)}"
        pieces = [self.side] if isinstance(self.side, ConnectorV2) else self.side
        return ", ".join(type(piece).__name__ for piece in pieces) or "no pieces"

    def plays_alone(self, pieces: Iterable[ConnectorV2]) -> bool:
        """Whether what learns through the pipeline, which is made of `pieces`, plays without pieces.

        So it is where nothing is given, or Python objects that are all our own and work for learners alone. A file says itself
        what belongs beside the environment.
        """
        if isinstance(self.side, PipelineFile):
            return False
        default = {type(piece) for piece in default_pieces()}
        return all(type(piece) in default or type(piece).__module__.startswith(LEARNERS_HOME) for piece in pieces)

    def build(self, observations: Space, actions: Space) -> ConnectorPipelineV2:
        """The pipeline for data of these spaces. Raises SpaceMismatch naming the piece, BadConfig."""
        if isinstance(self.side, PipelineFile):
            return self.side.build(Setting(observations, actions))
        return learner_pipeline(observations, actions, custom=copied(self.side))


def read_given(given: Given, *kinds: Kind) -> Side:
    """`given`, with the file read and checked. Raises StorageNotFound, MissingPackage; BadConfig for another kind of file."""
    if not isinstance(given, (str, PathLike)):
        return given
    file = read_pipeline(given, kind=kinds[0] if len(kinds) == 1 else None)
    if file.kind not in kinds:
        needed = " or ".join(f"'{kind}'" for kind in kinds)
        what = f"kind: this is a pipeline of kind '{file.kind}', and {needed} is needed here"
        raise BadConfig(what, where=file.where, fix="name a file of that kind")
    return file


def copied(side: AnySide) -> AnySide:
    """`side` with copies of pieces that are given as they are. Raises BadPiece for those that cannot be copied."""
    if side is None or isinstance(side, PipelineFile) or (callable(side) and not isinstance(side, ConnectorV2)):
        return side
    try:
        return copy.deepcopy(side)
    except Exception as err:
        what = f"pieces that cannot be copied: {err!r}"
        raise BadPiece(what, where="pipeline", fix="give a function that builds them") from err


def _hash(document: Mapping[str, Any]) -> str:
    return blake2b(json.dumps(document, sort_keys=True, default=str).encode(), digest_size=6).hexdigest()


# ---- episodes in parts ----


def check_streamable(pieces: Iterable[ConnectorV2]) -> None:
    """Raise BadConfig naming every piece that is not known to do with an episode what follows from that episode, and from what
    it has learned, alone. All of this package do; somebody's own have to say so (`ConnectorV2.per_episode`), and, where they
    have a state, be able to learn no more: the data is read more than once.
    """
    kinds = list(dict.fromkeys(map(type, pieces)))
    refused = [kind.__name__ for kind in kinds if not _by_episode(kind)]
    if refused:
        problems = [f"{name} may need all episodes at once, and a stream has a part of them at a time" for name in refused]
        fix = "put `per_episode = True` into the class if each episode is changed by itself, or leave out --streaming"
        raise BadConfig.of(problems, where=PLACE, fix=fix)
    endless = [kind.__name__ for kind in kinds if _learns(kind) and not _can_end(kind)]
    if endless:
        problems = [f"{name} has a state, and would take it from every reading of a stream" for name in endless]
        fix = "override `freeze` (learn no more) and `reset_state` (forget) in the class, or leave out --streaming"
        raise BadConfig.of(problems, where=PLACE, fix=fix)


def learns(piece: ConnectorV2) -> bool:
    """Whether the piece may learn from the episodes it sees: it has a state."""
    return _learns(type(piece))


def _learns(kind: type[ConnectorV2]) -> bool:
    return kind.get_state is not ConnectorV2.get_state


def _can_end(kind: type[ConnectorV2]) -> bool:
    return kind.freeze is not ConnectorV2.freeze and kind.reset_state is not ConnectorV2.reset_state


def _by_episode(kind: type[ConnectorV2]) -> bool:
    own_call = kind.__call__ is not SingleAgentObservationPreprocessor.__call__
    preprocessor = issubclass(kind, SingleAgentObservationPreprocessor) and not own_call
    return kind.__module__.startswith(OURS) or preprocessor or bool(vars(kind).get("per_episode", False))
