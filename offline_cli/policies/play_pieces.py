"""Which pieces a policy plays between; refuses pipelines that do not give what the policy takes, before anything is played."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from offline_cli.connectors.piece_makers import own_pieces
from offline_cli.connectors.pipeline_files import PipelineFile, Setting
from offline_cli.connectors.pipeline_spec import GivenPipeline, Side, copied
from offline_cli.connectors.play_inputs import check_lookback
from offline_cli.connectors.play_pipelines import PlayPipelines, TrainedPipeline, play_pipelines
from offline_cli.converting.misfits import misfits
from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, OfflineCliError, SpaceMismatch
from offline_cli.spaces import Space

__all__ = ["PlayPieces", "beside_learner"]

_log = logging.getLogger(__name__)

FIX = "name the pipeline file that the policy was trained with, and the environment it was trained for, wrapped as it was"


@dataclass(frozen=True, slots=True, eq=False)
class PlayPieces:
    """How to make both pipelines, anew for every round of playing: what pieces learn in one round is not in the next."""

    env_to_module: Side = None  # None: what `trained` says
    module_to_env: Side = None  # None: the default pipeline
    trained: TrainedPipeline | None = None  # None: nothing was learned
    lookback: int | None = None  # steps that pieces can look back on at least; None: the whole episode

    def pipelines(self, environment: Environment, *, device: Any = None) -> PlayPipelines:
        """For one environment. Raises what `play_pipelines` raises; BadData for a learned state that pieces cannot take."""
        spaces = environment.observation_space, environment.action_space
        setting = Setting(*spaces, env=environment.singles(1)[0], device=device)
        beside, after = copied(self.env_to_module), copied(self.module_to_env)
        if self.trained is None or not self.trained.state:
            return play_pipelines(setting, trained=self.trained, env_to_module=beside, module_to_env=after)
        try:
            return play_pipelines(setting, trained=self.trained, env_to_module=beside, module_to_env=after)
        except (OfflineCliError, MemoryError, ImportError):
            raise
        except Exception as err:  # a state from a run folder goes to pieces that may be anybody's
            what = f"what the pieces learned in training cannot be given to them: {err!r}"
            raise BadData(what, where=self.trained.where, fix="train again") from err

    def check(self, environment: Environment, observations: Space, actions: Space, *, where: str) -> None:
        """Raise SpaceMismatch unless a policy over these spaces can play through the pipelines; what `pipelines` raises, too;
        BadConfig for a lookback that is too short for a piece.

        Actions are held against the environment's only where no pieces of the user's lie between.
        """
        pipelines = self.pipelines(environment)
        check_lookback(pipelines, self.lookback, where=where)
        given = pipelines.env_to_module.observation_space or environment.observation_space
        problems = [
            text.replace("the data has", "the policy takes").replace("the environment", "the env-to-module pipeline gives")
            for text in misfits(observations, given, inferred=False, what="observations")
        ]
        if self.module_to_env is None:
            found = misfits(actions, environment.action_space, inferred=False, what="actions")
            problems += [text.replace("the data", "the policy") for text in found]
        if problems:
            raise SpaceMismatch.of(problems, where=where, fix=FIX)


def beside_learner(pipeline: GivenPipeline, env_to_module: Side) -> PlayPieces:
    """What a policy plays between that learns through `pipeline`, and does not play alone. Raises BadConfig for Python objects
    where `env_to_module` is not given: they may change observations.
    """
    if env_to_module is not None:
        return PlayPieces(env_to_module)
    if isinstance(pipeline.side, PipelineFile):
        _note_learners_alone(pipeline.side)
        return PlayPieces(pipeline.side)
    what = f"which pieces belong beside the environment cannot be told from Python objects: {pipeline.name}"
    fix = "give env_to_module as well ([] where none belong there), or a pipeline file for both"
    raise BadConfig(what, where="pipeline", fix=fix)


def _note_learners_alone(file: PipelineFile) -> None:
    """Log which pieces of other code play no part beside the environment: if they change observations, they should."""
    ours = set(own_pieces().values())
    others = [entry.label for entry in file.pieces if not entry.signature.takes_as_learner and entry.maker not in ours]
    if others:
        _log.warning(
            "note: for the learner alone: %s of %s; pieces that change observations take as_learner_connector, and play too",
            ", ".join(others),
            file.where,
        )
