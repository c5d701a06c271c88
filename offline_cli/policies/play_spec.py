"""PlaySpec: which connector pieces a policy plays between.

A policy that was trained through a learner pipeline plays through the pieces of it that work on both sides, with the state they
had after training, frozen: what a filter makes of an observation is what the policy learned from. A file for the env-to-module
side that a user names replaces those pieces; states of the same names are given to it nevertheless. There are no guesses: what
neither training nor a file determines is an error. So are pipelines that do not return what the policy takes, before anything
is played.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from offline_cli.connectors.common.mean_std_filter import MeanStdFilter
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.piece_makers import own_pieces, snake
from offline_cli.connectors.pipeline_spec import Given, PipelineSpec, PlayPipelines, Setting
from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, BadPiece, OfflineCliError, SpaceMismatch, UnknownPiece
from offline_cli.spaces import Space

__all__ = ["PlaySpec", "beside_learner"]

_log = logging.getLogger(__name__)

FIX: Final = "name the pipeline file that the policy was trained with"
FIX_STATE: Final = "a piece whose state is set (in Python), or a run that was trained through the file"


@dataclass(frozen=True, slots=True, eq=False)
class PlaySpec:
    """Which pieces a module plays between; both pipelines are made anew for each policy."""

    env_to_module: PipelineSpec = field(default_factory=partial(PipelineSpec, "env_to_module"))  # default: as `trained` says
    module_to_env: PipelineSpec = field(default_factory=partial(PipelineSpec, "module_to_env"))
    lookback: int | None = None  # steps that pieces can look back on at least; None: the whole episode
    trained: PipelineSpec | None = None  # the policy's learner pipeline, with what it learned; None: it plays without

    @classmethod
    def of(cls, env_to_module: Given = None, module_to_env: Given = None, lookback: int | None = None) -> PlaySpec:
        """What a user gave, files read and checked. Raises StorageNotFound, BadConfig, MissingPackage."""
        beside = PipelineSpec.of(env_to_module, "env_to_module", "learner")
        return cls(beside, PipelineSpec.of(module_to_env, "module_to_env"), lookback)

    @property
    def is_default(self) -> bool:
        """Whether the user gave neither pipeline."""
        return self.env_to_module.is_default and self.module_to_env.is_default

    def described(self) -> dict[str, Any]:
        """What episodes follow from, as JSON values: files with their content, Python objects by name; empty: nothing given."""
        given = {"env_to_module": self.env_to_module, "module_to_env": self.module_to_env}
        told = {side: spec.document or spec.name for side, spec in given.items() if not spec.is_default}
        plain: dict[str, Any] = json.loads(json.dumps(told, default=str))  # TOML has dates
        return plain if self.lookback is None else {**plain, "lookback": self.lookback}

    def code(self) -> list[Any]:
        """What makes the pieces."""
        return [*self.env_to_module.code(), *self.module_to_env.code()]

    def check_travels(self) -> None:
        """Raise BadConfig for Python objects that cannot be sent to worker processes."""
        try:
            pickle.dumps(self)
        except (pickle.PicklingError, TypeError, AttributeError) as err:
            fix = "a pipeline file, a function of an importable module, or --num-env-runners 0"
            raise BadConfig(f"pieces that no other process can get: {err}", where="pipeline", fix=fix) from err

    def build_in(self, environment: Environment, *, device: Any = None) -> PlayPipelines:
        """For one environment. Raises what `build` raises."""
        spaces = environment.observation_space, environment.action_space
        return self.build(Setting(*spaces, env=environment.singles(1)[0], device=device))

    def build(self, setting: Setting) -> PlayPipelines:
        """The pipelines for an environment, frozen. `setting.action_scale` None: actions as our action heads put them out.

        Raises BadConfig for a run trained with code where no file is given; SpaceMismatch, MissingPackage; UnknownPiece for a
        trained state that the file has no piece for, BadData for one that its piece cannot take.
        """
        to_module = self._beside().build(setting)
        if self.trained is not None:
            _take_state(to_module, self.trained)
        pipelines = PlayPipelines(to_module, self.module_to_env.build(setting))
        pipelines.freeze()
        if self.trained is not None:
            self.check_filters(pipelines)
        return pipelines

    def check_filters(self, pipelines: PlayPipelines) -> None:
        """Raise BadConfig for a frozen filter without a state, which would do nothing."""
        named = pipelines.env_to_module.named()
        new = [name for name, piece in named if isinstance(piece, MeanStdFilter) and not piece.get_state()]
        if new:
            what = f"piece {new[0]} has learned nothing in training, and must not learn while the policy is played"
            raise BadConfig(what, where=(self.trained or self.env_to_module).where, fix=FIX if self.trained else FIX_STATE)

    def _beside(self) -> PipelineSpec:
        trained = self.trained
        if trained is None or not self.env_to_module.is_default:
            return self.env_to_module.beside_environment()
        fix = "name a file of those that belong beside the environment: --env-to-module FILE"
        if trained.document is None:
            names = ", ".join(trained.names) or "of unknown names"
            what = f"the policy was trained through pieces that Python code made: {names}"
            raise BadConfig(what, where=trained.where, fix=fix)
        try:
            return trained.beside_environment()
        except BadConfig as err:
            what = f"the policy was trained through pieces of other code: {err.what_in_one_line}"
            raise BadConfig(what, where=trained.where, fix=fix) from err

    def as_dict(self) -> dict[str, list[str]]:
        """The pieces beside the default ones, with their options, by side; and what is unlike training. Raises BadConfig."""
        sides = {"env_to_module": self._beside(), "module_to_env": self.module_to_env}
        return {**{side: _pieces(spec) for side, spec in sides.items()}, "unlike_training": self.unlike_training()}

    def unlike_training(self) -> list[str]:
        """The pieces here and in training, where the user's file has others; empty: they are the same, or code's."""
        trained, given = self.trained, self.env_to_module
        if trained is None or trained.document is None or given.document is None:
            return []
        try:
            theirs, here = (_pieces(one if one.kind == given.kind else one.beside_environment()) for one in (trained, given))
        except BadConfig:  # in training they were of other code
            theirs, here = _pieces(trained), _pieces(given)
        if theirs == here:
            return []
        told = [", ".join(pieces) or "none" for pieces in (theirs, here)]
        return [f"the policy was trained through other pieces: in training {told[0]}; here {told[1]}"]

    def tell_unlike_training(self) -> None:
        """Log a note where a policy plays between other pieces than it was trained through."""
        for told in self.unlike_training():
            _log.warning("note: %s", told)

    def check(self, environment: Environment, observations: Space, actions: Space, *, where: str) -> None:
        """Raise SpaceMismatch unless a policy over these spaces can play through the pipelines; what `build` raises, too;
        BadConfig for a lookback that is too short for a piece.

        Actions are checked against the environment's only where no pieces of the user's lie between.
        """
        try:
            pipelines = self.build_in(environment)
        except BadData:  # what was learned from other observations does not fit: then these are what is wrong
            replace(self, trained=None, env_to_module=self._beside()).check(environment, observations, actions, where=where)
            raise
        back, name = max(((piece.looks_back, type(piece).__name__) for piece in pipelines.pieces()), default=(0, ""))
        if self.lookback is not None and back > self.lookback:
            fix = f"--lookback {back}, or none: the whole episode"
            raise BadConfig(f"piece {name} looks back {back} steps, and may only {self.lookback}", where=where, fix=fix)
        given = pipelines.env_to_module.observation_space or environment.observation_space
        problems = [
            text.replace("the data has", "the policy takes").replace("the environment", "the env-to-module pipeline gives")
            for text in misfits(observations, given, inferred=False, what="observations")
        ]
        if self.module_to_env.is_default:
            found = misfits(actions, environment.action_space, inferred=False, what="actions")
            problems += [text.replace("the data", "the policy") for text in found]
        if problems:
            raise SpaceMismatch.of(
                problems, where=where, fix=f"{FIX}, and the environment it was trained for, wrapped as it was"
            )


def _take_state(pipeline: ConnectorPipelineV2, trained: PipelineSpec) -> None:
    """Give pieces what they had learned in training.

    What one of our own pieces learned must find its piece (UnknownPiece): those that learn work on both sides, and without it
    the policy would see other observations than it learned from. A state that its piece does not take is BadData. What others
    learned may belong to the learner alone.
    """
    beside = dict(pipeline.named())
    lost = [name for name, state in trained.state.items() if name not in beside and _is_our_own(name, state)]
    if lost:
        what = f"state for a piece {lost[0]!r}, which the policy was trained through, and here are {list(beside)}"
        raise UnknownPiece(what, where=trained.where, fix=FIX)
    try:
        pipeline.set_state({name: state for name, state in trained.state.items() if name in beside})
    except Exception as err:  # the state has come from a file, and goes to pieces that may be user code
        if isinstance(err, (OfflineCliError, MemoryError, ImportError)) and not isinstance(err, BadPiece):
            raise
        why = err.what_in_one_line if isinstance(err, BadPiece) else repr(err)
        what = f"what the pieces learned in training cannot be given to them: {why}"
        raise BadData(what, where=trained.where, fix="train again") from err


def _is_our_own(name: str, state: Any) -> bool:
    """Whether a piece of ours of that unique name learned `state`, or one in a pipeline of that name."""
    kind, _, number = name.rpartition("_")
    if snake(kind if number.isdigit() else name) in own_pieces():
        return True
    return isinstance(state, Mapping) and any(_is_our_own(str(inner), part) for inner, part in state.items())


def beside_learner(learner: PipelineSpec, env_to_module: PipelineSpec) -> PlaySpec:
    """What a policy plays between that learns through `learner`, and does not play alone. Raises BadConfig for Python objects
    where `env_to_module` is not given: they may change observations.
    """
    if not env_to_module.is_default:
        return PlaySpec(env_to_module)
    if learner.document is None:
        what = f"which pieces belong beside the environment cannot be determined from Python objects: {learner.name}"
        fix = "give env_to_module as well ([] where none belong there), or a pipeline file for both"
        raise BadConfig(what, where="pipeline", fix=fix)
    ours = set(own_pieces().values())
    alone = [one.label for one in learner.entries() if not one.signature.takes_as_learner and one.maker not in ours]
    if alone:  # if they change observations, they should play, too
        _log.warning(
            "note: for the learner alone: %s of %s; pieces that change observations take as_learner_connector, and play too",
            ", ".join(alone),
            learner.where,
        )
    return PlaySpec(learner)


def _pieces(spec: PipelineSpec) -> list[str]:
    """The pieces of a file with their options; of Python objects what is known of them."""
    if spec.document is None:
        return [spec.name] * bool(spec.name)
    told = []
    for piece in spec.document.get("pieces", []):
        options = ", ".join(f"{name}={value!r}" for name, value in piece.items() if name not in ("name", "use"))
        told.append(f"{piece.get('name', piece.get('use'))}({options})")
    return told
