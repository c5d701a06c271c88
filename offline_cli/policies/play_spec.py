"""PlaySpec: the connector pipelines around a policy that plays.

A policy trained with a learner pipeline plays through those of its pieces that work on both sides, frozen in their state after
training. A user's env-to-module file replaces these pieces, but gets the trained states with matching names. If neither the
training nor a file determines the pieces, an error is raised before anything is played.
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
    """The pipelines around a module that plays; both are built anew for each policy."""

    env_to_module: PipelineSpec = field(default_factory=partial(PipelineSpec, "env_to_module"))  # default: from `trained`
    module_to_env: PipelineSpec = field(default_factory=partial(PipelineSpec, "module_to_env"))
    lookback: int | None = None  # past steps kept at least for pieces; None: the whole episode
    trained: PipelineSpec | None = None  # the policy's learner pipeline with its learned state; None: plays without pieces

    @classmethod
    def of(cls, env_to_module: Given = None, module_to_env: Given = None, lookback: int | None = None) -> PlaySpec:
        """From the user's arguments; read and validate files. Raises StorageNotFound, BadConfig, MissingPackage."""
        beside = PipelineSpec.of(env_to_module, "env_to_module", "learner")
        return cls(beside, PipelineSpec.of(module_to_env, "module_to_env"), lookback)

    @property
    def is_default(self) -> bool:
        """Whether the user gave neither pipeline."""
        return self.env_to_module.is_default and self.module_to_env.is_default

    def described(self) -> dict[str, Any]:
        """JSON values that identify the pipelines: content of files, names of Python objects; empty for the default."""
        given = {"env_to_module": self.env_to_module, "module_to_env": self.module_to_env}
        sides = {side: spec.document or spec.name for side, spec in given.items() if not spec.is_default}
        plain: dict[str, Any] = json.loads(json.dumps(sides, default=str))  # TOML has dates
        return plain if self.lookback is None else {**plain, "lookback": self.lookback}

    def code(self) -> list[Any]:
        """Classes and functions that make the pieces, or the pieces themselves."""
        return [*self.env_to_module.code(), *self.module_to_env.code()]

    # ---- building ----

    def build(self, setting: Setting) -> PlayPipelines:
        """Build the pipelines for these spaces, with their learned state, frozen.

        Raises BadConfig for a run trained with Python pieces if no file is given, and for a filter without state;
        SpaceMismatch, MissingPackage; UnknownPiece for a trained state without a piece, BadData for a state that its piece
        rejects.
        """
        return self._with_state(self._built(setting))

    def build_in(
        self, environment: Environment, observations: Space, actions: Space, *, where: str, device: Any = None
    ) -> PlayPipelines:
        """Build the pipelines between `environment` and a policy with these spaces. Raises like `build` and `check`."""
        pipelines = self.check(environment, observations, actions, where=where, device=device)
        return self._with_state(pipelines) if self.trained is None else pipelines

    def check(
        self, environment: Environment, observations: Space, actions: Space, *, where: str, device: Any = None
    ) -> PlayPipelines:
        """Build the pipelines, with their state if trained. Raises SpaceMismatch unless a policy with these spaces can play
        through them; BadConfig for a lookback that is too short for a piece.

        Actions are compared with the environment's only if the user gave no module-to-env pieces.
        """
        spaces = environment.observation_space, environment.action_space
        pipelines = self._built(Setting(*spaces, env=environment.singles(1)[0], device=device))
        back, name = max(((piece.looks_back, type(piece).__name__) for piece in pipelines.pieces()), default=(0, ""))
        if self.lookback is not None and back > self.lookback:
            fix = f"use --lookback {back}, or leave it out to keep whole episodes"
            raise BadConfig(f"piece {name} needs {back} past steps, but --lookback is {self.lookback}", where=where, fix=fix)
        given = pipelines.env_to_module.observation_space or spaces[0]
        problems = misfits(observations, given, inferred=False, what="observations")
        problems = [
            text.replace("the data has", "the policy takes").replace("the environment", "the env-to-module pipeline gives")
            for text in problems
        ]
        if self.module_to_env.is_default:
            problems += misfits(actions, spaces[1], inferred=False, what="actions")
        if problems:
            fix = f"{FIX}, and use its training environment with the same wrappers"
            raise SpaceMismatch.of([text.replace("the data", "the policy") for text in problems], where=where, fix=fix)
        return pipelines if self.trained is None else self._with_state(pipelines)

    def _built(self, setting: Setting) -> PlayPipelines:
        return PlayPipelines(self._beside().build(setting), self.module_to_env.build(setting))

    def _beside(self) -> PipelineSpec:
        """The env-to-module spec."""
        trained = self.trained
        if trained is None or not self.env_to_module.is_default:
            return self.env_to_module.beside_environment()
        what = f"pieces made in Python: {', '.join(trained.names) or 'of unknown names'}"
        if trained.document is not None:
            try:
                return trained.beside_environment()
            except BadConfig as err:
                what = f"pieces from other code: {err.what_in_one_line}"
        fix = "name an env-to-module pipeline file: --env-to-module FILE"
        raise BadConfig(f"the policy was trained with {what}", where=trained.where, fix=fix)

    def _with_state(self, pipelines: PlayPipelines) -> PlayPipelines:
        """Restore the trained state of the pieces, and freeze them.

        Every state of one of our own pieces needs its piece: without it the policy would see other observations than in
        training. States of other pieces may be learner-only.
        """
        learned, beside = {} if self.trained is None else self.trained.state, dict(pipelines.env_to_module.named())
        where = (self.trained or self.env_to_module).where
        if lost := [name for name, state in learned.items() if name not in beside and _is_our_own(name, state)]:
            what = f"the policy was trained with the piece {lost[0]!r}, but this pipeline has only {list(beside)}"
            raise UnknownPiece(what, where=where, fix=FIX)
        try:
            pipelines.env_to_module.set_state({name: state for name, state in learned.items() if name in beside})
        except Exception as err:  # may come from user code
            what = f"the pieces reject their trained state: {err!r}"
            raise BadData(what, where=where, fix="train again") from err
        new = [name for name, piece in beside.items() if isinstance(piece, MeanStdFilter) and not piece.get_state()]
        if new:
            what = f"piece {new[0]} has no trained state, and must not learn while the policy plays"
            raise BadConfig(what, where=where, fix=f"{FIX}; or pass a piece with a state, in Python")
        pipelines.freeze()
        return pipelines


def _is_our_own(name: str, state: Any) -> bool:
    """Whether `state` belongs to one of our own pieces with that unique name, or to one in a pipeline of that name."""
    if snake(re.sub(r"_\d+$", "", name)) in own_pieces():
        return True
    return isinstance(state, Mapping) and any(_is_our_own(str(inner), part) for inner, part in state.items())


def beside_learner(learner: PipelineSpec, env_to_module: PipelineSpec) -> PlaySpec:
    """The PlaySpec of a policy that learns with `learner` and does not play alone. Raises BadConfig for Python objects without
    `env_to_module`: they may change observations.
    """
    if not env_to_module.is_default:
        return PlaySpec(env_to_module)
    if learner.document is None:
        what = f"the env-to-module pieces cannot be determined from Python objects: {learner.name}"
        fix = "pass env_to_module too ([] for none), or a pipeline file for both"
        raise BadConfig(what, where="pipeline", fix=fix)
    ours = set(own_pieces().values())
    if alone := [one.label for one in learner.entries() if not one.signature.takes_as_learner and one.maker not in ours]:
        what = "note: learner-only pieces: %s of %s; pieces that change observations need as_learner_connector to play too"
        _log.warning(what, ", ".join(alone), learner.where)
    return PlaySpec(learner)
