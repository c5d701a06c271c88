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
from typing import Any, Final, Self

from offline_cli.applying.learned_pieces import frozen_with, learn
from offline_cli.applying.learner_batches import check_known_scale, in_learner_units, learner_spaces, with_steps
from offline_cli.columns import Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.learner.added_columns import AddNextObservationsFromEpisodesToTrainBatch
from offline_cli.connectors.learner.returns import GeneralAdvantageEstimation, NStepReturns
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.converting.fitting import misfits
from offline_cli.converting.reading import EpisodeStream
from offline_cli.environments import open_environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import SpaceMismatch
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.source import ENV_SCALE
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.run_policy import LoadedPolicy
from offline_cli.spaces import Space

__all__ = ["PipelineRun"]

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

    @classmethod
    def of(
        cls,
        file: PipelineSpec,
        policy: LoadedPolicy | None,
        env: AskedEnvironment | None,
        stream: EpisodeStream | None,
        *,
        keep_invented: bool,
    ) -> Self:
        """For the episodes of `stream`; None: of the environment alone.

        Raises BadConfig for Box actions of unknown scale; SpaceMismatch, naming the piece that cannot take the spaces, or with
        every difference between what comes out of the pipeline and what the network of `policy` takes.
        """
        environment, where = None, ", ".join(stream.locations) if stream else f"--env {env and env.id}"
        if env is not None:
            asked: Any = stream.environment if stream else env.among(())
            with open_environment(asked.id, asked.kwargs, asked.wrappers) as environment:
                spaces = environment.observation_space, environment.action_space  # they hold when it is closed, too
        if stream is not None:
            check_known_scale(stream)
            said = stream.observation_space, stream.action_space
            spaces = learner_spaces(said, environment, inferred=stream.spaces_inferred, where=where)
        pipeline = file.build(Setting(*spaces))
        if policy is not None:
            _check_network(pipeline, policy.module)
            _keep_learned(pipeline, policy)
        return cls(file, pipeline, spaces, stream.action_scale if stream else ENV_SCALE, where, policy, keep_invented)

    @property
    def module(self) -> RLModule | None:
        """The network that pieces get."""
        return None if self.policy is None else self.policy.module

    @property
    def announced(self) -> dict[str, Space | None]:
        """What the pipeline says of the columns that spaces describe."""
        observations, actions = self.pipeline.observation_space, self.pipeline.action_space
        return {Columns.OBS: observations, Columns.NEXT_OBS: observations, Columns.ACTIONS: actions}

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
        """Have the pieces learn from the prepared episodes of each `read()`. Raises what `learned_pieces.learn` raises."""
        setting = Setting(*self.spaces)
        learn(self.pipeline, lambda: self.file.build(setting), read, where=self.where, rl_module=self.module)


def _check_network(pipeline: ConnectorPipelineV2, module: RLModule) -> None:
    given, taken = ((one.observation_space, one.action_space) for one in (pipeline, module))
    problems = [
        text.replace("the data has", "the pipeline gives").replace("the environment", "the network takes")
        for what, space, own in zip(("observations", "actions"), given, taken, strict=True)
        if space is not None and own is not None
        for text in misfits(space, own, inferred=False, what=what)
    ]
    if problems:
        fix = "the pipeline that the run was trained through, in its spaces, or another run"
        raise SpaceMismatch.of(problems, where="--policy", fix=fix)


def _keep_learned(pipeline: ConnectorPipelineV2, policy: LoadedPolicy) -> None:
    state = {} if policy.trained is None else policy.trained.state
    names = {name for name, _ in pipeline.named()}
    frozen_with(pipeline, {name: part for name, part in state.items() if name in names})
    if lacking := [name for name in state if name not in names]:
        what = "note: the policy was trained through pieces that learned and that this pipeline has not: %s"
        _log.warning(what, ", ".join(lacking))
