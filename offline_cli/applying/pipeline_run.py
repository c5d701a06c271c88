"""PipelineRun: a learner pipeline over recorded episodes, for the batches of `apply`, `--show` and `--trace` alike.

Decisions:

* Episodes come to the pipeline as `train-bc` gives them to it: Box actions in the units of networks; episodes without steps,
  and extra outputs that are text, left out; the spaces of the environment where one is named. Values are not checked (NaN
  passes through, and `validate` finds it), and rows that `loss_mask` marks as False stay.
* Pieces get the network of a run folder, in evaluation mode, without gradients; without one those for stateful modules do
  nothing. Pieces that the run was trained through keep what they had learned there. All others see all episodes, once for each
  piece that learns, before the first batch is made, and are frozen then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from offline_cli.applying.learned_pieces import frozen_with, learn
from offline_cli.applying.learner_batches import in_learner_units, with_steps
from offline_cli.columns import Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.learner.added_columns import AddNextObservationsFromEpisodesToTrainBatch
from offline_cli.connectors.learner.returns import GeneralAdvantageEstimation, NStepReturns
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.converting.fitting import misfits
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import SpaceMismatch, UnsupportedSpace
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.run_policy import LoadedPolicy
from offline_cli.spaces import Space, space_to_json

__all__ = ["PipelineRun", "pipeline_with_network", "space_as_json"]

OF_NEXT: Final = (AddNextObservationsFromEpisodesToTrainBatch, GeneralAdvantageEstimation, NStepReturns)
"""Pieces that take next observations, or their values: they get none that nobody recorded."""
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PipelineRun:
    """A pipeline that is built for the spaces of the episodes it gets."""

    file: PipelineSpec
    pipeline: ConnectorPipelineV2
    spaces: tuple[Space, Space]  # of observations and actions, before the pipeline
    action_scale: str  # of the recorded actions
    where: str  # the sources, for messages
    policy: LoadedPolicy | None  # whose network pieces get
    keep_invented: bool  # also the last steps whose next observation nobody recorded
    steps_left_out: int = 0  # of the latest reading

    @property
    def module(self) -> RLModule | None:
        """The network that pieces get."""
        return None if self.policy is None else self.policy.module

    @property
    def announced(self) -> dict[str, Space | None]:
        """What the pipeline says of the columns that spaces describe."""
        observations, actions = self.pipeline.observation_space, self.pipeline.action_space
        return {Columns.OBS: observations, Columns.NEXT_OBS: observations, Columns.ACTIONS: actions}

    def as_dict(self) -> dict[str, Any]:
        """JSON values: the pipeline, the spaces before and after it, the scale of recorded actions."""
        spaces = {
            "input_observation_space": self.spaces[0],
            "input_action_space": self.spaces[1],
            "observation_space": self.pipeline.observation_space,
            "action_space": self.pipeline.action_space,
        }
        as_json = {name: space_as_json(space) for name, space in spaces.items()}
        return {"pipeline": self.file.document, **as_json, "action_scale": self.action_scale}

    def prepared(self, recorded: Iterable[EpisodeBatch]) -> Iterator[EpisodeBatch]:
        """The episodes that have a step, as a learner gets them."""
        observed_ends = not self.keep_invented and any(isinstance(piece, OF_NEXT) for piece in self.pipeline.pieces())
        self.steps_left_out = 0
        for batch in recorded:
            observed = batch.without_invented() if observed_ends else batch
            self.steps_left_out += batch.num_steps - observed.num_steps
            moving = with_steps(observed)
            if len(moving):
                yield in_learner_units(moving, self.spaces[1], self.action_scale)

    def learn(self, read: Callable[[], Iterable[EpisodeBatch]]) -> None:
        """Have the pieces learn from the prepared episodes that each call of `read` gives. Raises what `learned_pieces.learn`
        raises."""
        setting = Setting(*self.spaces)
        learn(self.pipeline, lambda: self.file.build(setting), read, where=self.where, rl_module=self.module)


def pipeline_with_network(file: PipelineSpec, spaces: tuple[Space, Space], policy: LoadedPolicy | None) -> ConnectorPipelineV2:
    """The pipeline of `file` for these spaces. Pieces that `policy` plays through keep what they had learned.

    Raises SpaceMismatch, naming the piece that cannot take the spaces, or with every difference between what comes out of the
    pipeline and what the network takes.
    """
    made = file.build(Setting(*spaces))
    if policy is None:
        return made
    after = made.observation_space or spaces[0], made.action_space or spaces[1]
    taken = policy.module.observation_space, policy.module.action_space
    problems = [
        text.replace("the data has", "the pipeline gives").replace("the environment", "the network takes")
        for what, space, own in zip(("observations", "actions"), after, taken, strict=True)
        for text in misfits(space, own, inferred=False, what=what)
    ]
    if problems:
        fix = "the pipeline that the run was trained through, in its spaces, or another run"
        raise SpaceMismatch.of(problems, where="--policy", fix=fix)
    state = {} if policy.trained is None else policy.trained.state
    names = {name for name, _ in made.named()}
    frozen_with(made, {name: part for name, part in state.items() if name in names})
    if lacking := [name for name in state if name not in names]:
        what = "note: the policy was trained through pieces that learned and that this pipeline has not: %s"
        _log.warning(what, ", ".join(lacking))
    return made


def space_as_json(space: Space | None) -> dict[str, Any] | None:
    """`space` as JSON; None for none, and for one that no episode can have: a piece may lead to such a space."""
    try:
        return None if space is None else space_to_json(space)
    except UnsupportedSpace:
        return None
