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
from typing import Any, Final

from offline_cli.applying.learned_pieces import freeze, learn
from offline_cli.applying.learner_batches import in_learner_units, learner_spaces, with_steps
from offline_cli.columns import Columns
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
from offline_cli.policies.run_policy import LoadedPolicy
from offline_cli.spaces import Space

__all__ = ["PipelineRun"]

OF_NEXT: Final = (AddNextObservationsFromEpisodesToTrainBatch, GeneralAdvantageEstimation, NStepReturns)
"""Pieces that take next observations, or their values: they get none that nobody recorded."""
_log = logging.getLogger(__name__)


class PipelineRun:
    """A pipeline that is built for the spaces of the episodes it gets."""

    def __init__(
        self,
        file: PipelineSpec,
        policy: LoadedPolicy | None,
        env: AskedEnvironment | None,
        stream: EpisodeStream | None,
        *,
        keep_invented: bool,
    ) -> None:
        """For the episodes of `stream`; None: of the environment alone. `policy`: whose network pieces get. `keep_invented`:
        also the last steps whose next observation nobody recorded.

        Raises BadConfig for Box actions of unknown scale; SpaceMismatch, naming the piece that cannot take the spaces, or with
        every difference between what comes out of the pipeline and what the network of `policy` takes.
        """
        self.file, self.policy, self.module = file, policy, None if policy is None else policy.module
        self.where = ", ".join(stream.locations) if stream else f"--env {env and env.id}"  # for messages
        self.action_scale = stream.action_scale if stream else ENV_SCALE  # of the recorded actions
        self.steps_left_out = 0  # of the latest reading
        environment = None
        if env is not None:
            asked: Any = stream.environment if stream else env.among(())
            with open_environment(asked.id, asked.kwargs, asked.wrappers) as environment:
                spaces = environment.observation_space, environment.action_space  # they hold when it is closed, too
        if stream is not None:
            spaces = learner_spaces(stream, environment)
        self.spaces: tuple[Space, Space] = spaces  # of observations and actions, before the pipeline
        self.pipeline = file.build(Setting(*spaces))
        self._observed_ends = not keep_invented and any(isinstance(piece, OF_NEXT) for piece in self.pipeline.pieces())
        if policy is not None:
            self._fit_to(policy)

    def _fit_to(self, policy: LoadedPolicy) -> None:
        """Check the spaces of the policy's network, and give pieces what they had learned with it."""
        given, taken = ((one.observation_space, one.action_space) for one in (self.pipeline, policy.module))
        problems = [
            text.replace("the data has", "the pipeline gives").replace("the environment", "the network takes")
            for what, space, own in zip(("observations", "actions"), given, taken, strict=True)
            if space is not None and own is not None
            for text in misfits(space, own, inferred=False, what=what)
        ]
        if problems:
            fix = "the pipeline that the run was trained through, in its spaces, or another run"
            raise SpaceMismatch.of(problems, where="--policy", fix=fix)
        state, pieces = {} if policy.trained is None else dict(policy.trained.state), dict(self.pipeline.named())
        for name, learned in state.items():
            if name in pieces:
                pieces[name].set_state(learned)
                freeze(pieces[name])
        if lacking := [name for name in state if name not in pieces]:
            what = "note: the policy was trained through pieces that learned and that this pipeline has not: %s"
            _log.warning(what, ", ".join(lacking))

    @property
    def announced(self) -> dict[str, Space | None]:
        """What the pipeline says of the columns that spaces describe."""
        observations, actions = self.pipeline.observation_space, self.pipeline.action_space
        return {Columns.OBS: observations, Columns.NEXT_OBS: observations, Columns.ACTIONS: actions}

    def prepared(self, recorded: Iterable[EpisodeBatch]) -> Iterator[EpisodeBatch]:
        """The episodes that have a step, as a learner gets them."""
        self.steps_left_out = 0
        for batch in recorded:
            observed = batch.without_invented() if self._observed_ends else batch
            self.steps_left_out += batch.num_steps - observed.num_steps
            moving = with_steps(observed)
            if len(moving):
                yield in_learner_units(moving, self.spaces[1], self.action_scale)

    def learn(self, read: Callable[[], Iterable[EpisodeBatch]]) -> None:
        """Have the pieces learn from the prepared episodes of each `read()`. Raises what `learned_pieces.learn` raises."""
        setting = Setting(*self.spaces)
        learn(self.pipeline, lambda: self.file.build(setting), read, where=self.where, rl_module=self.module)
