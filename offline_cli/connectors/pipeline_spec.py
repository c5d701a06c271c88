"""A pipeline as a user gives it (a file, pieces, or a builder), and the two pipelines that a trained policy is played between.

Pieces that are given as objects serve as patterns: each pipeline is built from copies of them, so that nothing that one run, or
one round of playing, learned is in the next. `check_streamable` says which pieces may see the episodes in parts.

`play_pipelines`: a policy that was trained through a learner pipeline is played through the pieces of it that work on both
sides, with the state they had after training, frozen: what a filter makes of an observation is what the policy learned from. A
file for the env-to-module side that a user names replaces those pieces; states of the same names are given to it all the same.
There are no guesses: what neither training nor a file determines is an error.

A run folder may name our own pieces and no code. Where it was trained with other code, the user has to name the pipeline file
again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from os import PathLike
from typing import Any, Final, TypeVar

from offline_cli.connectors.common.mean_std_filter import MeanStdFilter
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.env_to_module.default_pipeline import env_to_module_pipeline
from offline_cli.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from offline_cli.connectors.learner.default_pipeline import default_pieces, learner_pipeline
from offline_cli.connectors.module_to_env.default_pipeline import module_to_env_pipeline
from offline_cli.connectors.piece_makers import Custom, Kind, own_pieces, snake
from offline_cli.connectors.pipeline_files import PipelineFile, Setting, parse_pipeline, read_pipeline
from offline_cli.errors import BadConfig, BadData, BadPiece, UnknownPiece
from offline_cli.spaces import Space

__all__ = [
    "Given",
    "GivenPipeline",
    "PlayPipelines",
    "Side",
    "TrainedPipeline",
    "check_streamable",
    "copied",
    "learns",
    "play_pipelines",
    "read_given",
]

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
    it has learned, alone. All of this package do; others have to say so (`ConnectorV2.per_episode`), and, where they
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


@dataclass(frozen=True, slots=True)
class TrainedPipeline:
    """The learner pipeline that a policy was trained through, as its run folder describes it."""

    document: Mapping[str, Any] | None  # of the pipeline file; None: it was given as Python objects
    state: Mapping[str, Any] = field(default_factory=dict)  # what its pieces had learned, by name
    where: str = "run"
    pieces: tuple[str, ...] = ()  # the names of all its pieces, default ones included
    plugins: tuple[str, ...] = ()  # packages whose pieces may be imported because the document names them


@dataclass(frozen=True, slots=True, eq=False)
class PlayPipelines:
    """Both pipelines, for one environment's spaces."""

    env_to_module: ConnectorPipelineV2
    module_to_env: ConnectorPipelineV2

    def get_state(self) -> dict[str, Any]:
        """What the pieces of both have learned; empty: nothing."""
        parts = {"env_to_module": self.env_to_module.get_state(), "module_to_env": self.module_to_env.get_state()}
        return {name: state for name, state in parts.items() if state}

    def merge_states(self, states: list[Mapping[str, Any]]) -> dict[str, Any]:
        """One state from those of runners that played side by side. Raises BadPiece where pieces cannot merge theirs."""
        parts = {"env_to_module": self.env_to_module, "module_to_env": self.module_to_env}
        merged = {name: part.merge_states([state[name] for state in states if name in state]) for name, part in parts.items()}
        return {name: state for name, state in merged.items() if state}


def play_pipelines(
    setting: Setting,
    *,
    trained: TrainedPipeline | None = None,
    env_to_module: PipelineFile | Custom = None,
    module_to_env: PipelineFile | Custom = None,
) -> PlayPipelines:
    """The pipelines for an environment (`setting`): with pieces from `trained`, the files or builders, else default ones alone.

    `env_to_module` may be a learner's file: see `PipelineFile.beside_environment`. `setting.action_scale` None means actions as
    our action heads put them out. Raises BadConfig, naming the pieces, for a run trained with code where no file is given;
    SpaceMismatch, MissingPackage; UnknownPiece for a trained state that the file has no piece for.
    """
    if trained is not None and env_to_module is None:
        env_to_module = _own_pieces_of(trained)
    to_module = _env_to_module(env_to_module, setting)
    if trained is not None:
        _take_state(to_module, trained)
    return PlayPipelines(to_module, _module_to_env(module_to_env, setting))


def _env_to_module(given: PipelineFile | Custom, setting: Setting) -> ConnectorPipelineV2:
    if isinstance(given, PipelineFile):
        return (given.beside_environment() if given.kind == "learner" else given).build(setting)
    spaces = setting.observation_space, setting.action_space
    return env_to_module_pipeline(*spaces, custom=given, env=setting.env, device=setting.device, num_envs=setting.num_envs)


def _module_to_env(given: PipelineFile | Custom, setting: Setting) -> ConnectorPipelineV2:
    if isinstance(given, PipelineFile):
        return given.build(setting)
    spaces = setting.observation_space, setting.action_space
    return module_to_env_pipeline(*spaces, custom=given, env=setting.env, num_envs=setting.num_envs)


def _own_pieces_of(trained: TrainedPipeline) -> PipelineFile:
    if trained.document is None:
        what = f"the policy was trained through pieces that Python code made: {', '.join(trained.pieces) or 'of unknown names'}"
        fix = "name a file of those that belong beside the environment: --env-to-module FILE (in Python: env_to_module=...)"
        raise BadConfig(what, where=trained.where, fix=fix)
    try:
        return parse_pipeline(trained.document, where=trained.where, kind="learner", trusted=False, plugins=trained.plugins)
    except BadConfig as err:
        fix = "name the pipeline file it was trained with: --env-to-module FILE"
        raise BadConfig(
            f"the policy was trained through pieces of other code: {err.what_in_one_line}", where=trained.where, fix=fix
        ) from err


def _take_state(pipeline: ConnectorPipelineV2, trained: TrainedPipeline) -> None:
    """Give pieces what they had learned in training, and have them learn no more.

    What one of our own pieces learned must find its piece (UnknownPiece): those that learn work on both sides, and without it
    the policy would see other observations than it learned from. A filter without a state would do nothing, and is refused
    (BadConfig), and a state that its piece does not take is BadData. What others learned may belong to the learner alone.
    """
    beside = [name for name, _ in pipeline.named()]
    lost = [name for name, state in trained.state.items() if name not in beside and _is_our_own(name, state)]
    if lost:
        what = f"state for a piece {lost[0]!r}, which the policy was trained through, and here are {beside}"
        raise UnknownPiece(what, where=trained.where, fix="name the pipeline file that the policy was trained with")
    new = [name for name, piece in pipeline.named() if isinstance(piece, MeanStdFilter) and name not in trained.state]
    if new:
        what = f"piece {new[0]} has learned nothing in training, and must not learn while the policy is played"
        raise BadConfig(what, where=trained.where, fix="name the pipeline file that the policy was trained with")
    try:
        pipeline.set_state({name: state for name, state in trained.state.items() if name in beside})
    except BadPiece as err:  # the state's fault here, and it has come from a file
        what = f"what the pieces learned in training cannot be given to them: {err.what_in_one_line}"
        raise BadData(what, where=trained.where, fix="train again") from err
    pipeline.freeze()


def _is_our_own(name: str, state: Any) -> bool:
    """Whether a piece of ours of that unique name learned `state`, or one in a pipeline of that name."""
    kind, _, number = name.rpartition("_")
    if snake(kind if number.isdigit() else name) in own_pieces():
        return True
    return isinstance(state, Mapping) and any(_is_our_own(str(inner), part) for inner, part in state.items())
