"""PlaySpec: which connector pieces a policy plays between.

A policy that was trained through a learner pipeline plays through the pieces of it that work on both sides, with the state they
had after training, frozen. A file for the env-to-module side that a user names replaces those pieces; states of the same names
are given to it nevertheless. What neither training nor a file determines is an error before anything is played.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from offline_cli.connectors.common.mean_std_filter import MeanStdFilter
from offline_cli.connectors.piece_makers import own_pieces, snake
from offline_cli.connectors.pipeline_spec import Given, PipelineSpec, PlayPipelines, Setting
from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, SpaceMismatch, UnknownPiece
from offline_cli.spaces import Space

__all__ = ["PlaySpec", "beside_learner"]

_log = logging.getLogger(__name__)

FIX: Final = "name the pipeline file that the policy was trained with"


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

    # ---- built ----

    def build(self, setting: Setting) -> PlayPipelines:
        """The pipelines for these spaces, with what their pieces learned, frozen.

        Raises BadConfig for a run trained with code where no file is given, and for a filter without a state; SpaceMismatch,
        MissingPackage; UnknownPiece for a trained state that the file has no piece for, BadData for one that its piece cannot
        take.
        """
        return self._with_state(self._built(setting))

    def build_in(
        self, environment: Environment, observations: Space, actions: Space, *, where: str, device: Any = None
    ) -> PlayPipelines:
        """The same between that environment and a policy over these spaces. Raises as `build` and `check` do."""
        found = self.check(environment, observations, actions, where=where, device=device)
        return self._with_state(found) if self.trained is None else found

    def check(
        self, environment: Environment, observations: Space, actions: Space, *, where: str, device: Any = None
    ) -> PlayPipelines:
        """The pipelines, without what is not trained yet. Raises SpaceMismatch unless a policy over these spaces can play
        through them; BadConfig for a lookback that is too short for a piece.

        Actions are checked against the environment's only where no pieces of the user's lie between.
        """
        spaces = environment.observation_space, environment.action_space
        pipelines = self._built(Setting(*spaces, env=environment.singles(1)[0], device=device))
        back, name = max(((piece.looks_back, type(piece).__name__) for piece in pipelines.pieces()), default=(0, ""))
        if self.lookback is not None and back > self.lookback:
            fix = f"--lookback {back}, or none: the whole episode"
            raise BadConfig(f"piece {name} looks back {back} steps, and may only {self.lookback}", where=where, fix=fix)
        given = pipelines.env_to_module.observation_space or spaces[0]
        problems = misfits(observations, given, inferred=False, what="observations")
        problems = [
            text.replace("the data has", "the policy takes").replace("the environment", "the env-to-module pipeline gives")
            for text in problems
        ]
        if self.module_to_env.is_default:
            problems += misfits(actions, spaces[1], inferred=False, what="actions")
        if problems:
            fix = f"{FIX}, and the environment it was trained for, wrapped as it was"
            raise SpaceMismatch.of([text.replace("the data", "the policy") for text in problems], where=where, fix=fix)
        return pipelines if self.trained is None else self._with_state(pipelines)

    def _built(self, setting: Setting) -> PlayPipelines:
        return PlayPipelines(self._beside().build(setting), self.module_to_env.build(setting))

    def _beside(self) -> PipelineSpec:
        """The env-to-module side."""
        trained = self.trained
        if trained is None or not self.env_to_module.is_default:
            return self.env_to_module.beside_environment()
        what = f"pieces that Python code made: {', '.join(trained.names) or 'of unknown names'}"
        if trained.document is not None:
            try:
                return trained.beside_environment()
            except BadConfig as err:
                what = f"pieces of other code: {err.what_in_one_line}"
        fix = "name a file of those that belong beside the environment: --env-to-module FILE"
        raise BadConfig(f"the policy was trained through {what}", where=trained.where, fix=fix)

    def _with_state(self, pipelines: PlayPipelines) -> PlayPipelines:
        """Give pieces what they had learned in training, and freeze them.

        What a piece of ours learned must find its piece: without it the policy would see other observations than it learned
        from. What others learned may belong to the learner alone.
        """
        learned, beside = {} if self.trained is None else self.trained.state, dict(pipelines.env_to_module.named())
        where = (self.trained or self.env_to_module).where
        if lost := [name for name, state in learned.items() if name not in beside and _is_our_own(name, state)]:
            what = f"state for a piece {lost[0]!r}, which the policy was trained through, and here are {list(beside)}"
            raise UnknownPiece(what, where=where, fix=FIX)
        try:
            pipelines.env_to_module.set_state({name: state for name, state in learned.items() if name in beside})
        except Exception as err:  # of user code, maybe
            what = f"what the pieces learned in training cannot be given to them: {err!r}"
            raise BadData(what, where=where, fix="train again") from err
        new = [name for name, piece in beside.items() if isinstance(piece, MeanStdFilter) and not piece.get_state()]
        if new:
            what = f"piece {new[0]} has learned nothing in training, and must not learn while the policy is played"
            raise BadConfig(what, where=where, fix=f"{FIX}; or a piece whose state is set, in Python")
        pipelines.freeze()
        return pipelines


def _is_our_own(name: str, state: Any) -> bool:
    """Whether a piece of ours of that unique name learned `state`, or one in a pipeline of that name."""
    if snake(re.sub(r"_\d+$", "", name)) in own_pieces():
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
    if alone := [one.label for one in learner.entries() if not one.signature.takes_as_learner and one.maker not in ours]:
        what = "note: for the learner alone: %s of %s; pieces that change observations take as_learner_connector, and play too"
        _log.warning(what, ", ".join(alone), learner.where)
    return PlaySpec(learner)
