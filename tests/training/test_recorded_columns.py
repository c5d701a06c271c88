"""Without a pipeline of the user's, the recorded columns are learned from: those that the default pipeline would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from offline_cli.applying.learner_batches import in_learner_units, learner_columns, with_steps
from offline_cli.columns import STATE_COLUMNS, Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.learner.default_pipeline import learner_pipeline
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.modules import build_recurrent_module
from offline_cli.modules.network import Mlp
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space
from offline_cli.testing import episode_batches
from offline_cli.training.algorithms import Modules
from offline_cli.training.algorithms.bc import BC
from offline_cli.training.config import BCConfig
from offline_cli.training.learner import Setup
from offline_cli.training.training_data import Preparation, load_data
from offline_cli.trees import flatten

STEPS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
OBSERVATIONS = {
    "vectors": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "float64": spaces.Box(-1.0, 1.0, (2,), np.float64),
    "images": spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "choices": spaces.Discrete(5, start=2),
    "dicts": spaces.Dict({"seen": spaces.Box(0, 255, (4,), np.uint8), "place": spaces.Tuple([spaces.Discrete(3)])}),
    "any": None,
}


@pytest.mark.parametrize("kind", OBSERVATIONS)
@settings(max_examples=12)
@given(data=st.data())
def test_recorded_columns_are_bit_for_bit_those_of_the_default_pipeline(kind: str, data: st.DataObject) -> None:
    batch = with_steps(data.draw(episode_batches(observation_space=OBSERVATIONS[kind])))
    assume(len(batch))
    assert batch.action_space is not None
    assert batch.observation_space is not None
    if data.draw(st.booleans(), label="masked"):
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=batch.num_steps, max_size=batch.num_steps)))
        batch = replace(batch, extra={Columns.LOSS_MASK: mask})
    episodes = in_learner_units(batch, batch.action_space, "env")
    assert episodes.action_space is not None
    announced = batch.observation_space, episodes.action_space
    asked = (*STEPS, *(name for name in batch.extra if name not in STATE_COLUMNS))
    found, wanted = (outcome(pipeline, episodes, announced, asked) for pipeline in (None, learner_pipeline(*announced)))
    assert list(found) == list(wanted)
    for (path, leaf), (_, other) in zip(flatten(found), flatten(wanted), strict=True):
        assert leaf.dtype == other.dtype, path
        assert torch.equal(leaf, other), path


def outcome(
    pipeline: ConnectorPipelineV2 | None, episodes: EpisodeBatch, announced: tuple[Space, Space], asked: Sequence[str]
) -> dict[str, Any]:
    """The columns; none under the name of the error where values cannot be learned from: some are NaN."""
    try:
        return learner_columns(pipeline, episodes, announced, where="here", asked=asked)
    except BadData as err:
        return {err.what: ()}


class Extending(BC):
    def extend(self, pipeline: ConnectorPipelineV2) -> None:
        """Nothing, but it might."""


class Showing(BC):
    def rl_module(self, modules: Modules) -> nn.Module:
        return modules["policy"]


class Remembering(Mlp):
    def policy(self, observation_space: Any, action_space: Any, **_: Any) -> RLModule:
        return build_recurrent_module(observation_space, action_space, hidden=[8], memory_size=4, max_seq_len=5)


@pytest.mark.parametrize(
    ("algorithm", "network", "goes_through"),
    [(BC, Mlp, False), (BC, Remembering, True), (Extending, Mlp, True), (Showing, Mlp, True)],
)
def test_episodes_go_through_the_default_pieces_where_those_may_make_a_difference(
    write_dataset: Callable[..., Path],
    algorithm: type[BC],
    network: type[Mlp],
    goes_through: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(algorithm({}), network({"hidden": [8], "activation": "relu"}))
    seen, real = [], Preparation.learned
    monkeypatch.setattr(Preparation, "learned", lambda prepared: (seen.append(prepared.pieces), real(prepared))[1])
    load_data(str(write_dataset()), BCConfig(), setup, on_progress=lambda _: None)
    names = [type(piece).__name__ for piece in seen[0]]
    assert ("AddStatesFromEpisodesToBatch" in names) is goes_through
    assert bool(names) is goes_through
