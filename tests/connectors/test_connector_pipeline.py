"""Pipelines: pieces by name, spaces before any data, states by piece, errors that name the piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.connectors import ConnectorPipelineV2, ConnectorV2, FrameStacking, NumpyToTensor
from offline_cli.connectors.connector_v2 import Batch
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadPiece, SpaceMismatch, UnknownPiece

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Discrete(2)


class Piece(ConnectorV2):
    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        return batch


class Counts(Piece):
    """Remembers a number."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number = 0

    def get_state(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"number": self.number} if self.number else {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.number = state["number"]

    def reset_state(self) -> None:
        self.number = 0


class Largest(Counts):
    pass


class Doubles(Piece):
    def recompute_output_observation_space(self, observations: Any, actions: Any) -> Any:
        assert observations.shape == (3,), "wants three"
        return spaces.Box(-1, 1, (6,), np.float32)


def names(pipeline: ConnectorPipelineV2) -> list[str]:
    return [name for name, _ in pipeline.named()]


# ---- pieces by name ----


def test_unknown_names_raise_with_the_nearest_one_and_change_nothing() -> None:
    pipeline = ConnectorPipelineV2(connectors=[FrameStacking(), NumpyToTensor()])
    for call in (
        lambda: pipeline.insert_before("FrameStackin", Piece()),
        lambda: pipeline.insert_after("FrameStackin", Piece()),
        lambda: pipeline.remove("FrameStackin"),
        lambda: pipeline["FrameStackin"],
        lambda: pipeline.set_state({"FrameStackin": {"x": 1}}),
    ):
        with pytest.raises(UnknownPiece) as caught:
            call()
        assert caught.value.fix == "did you mean FrameStacking?"
        assert names(pipeline) == ["FrameStacking", "NumpyToTensor"]


def test_pieces_are_found_by_index_name_slice_and_class() -> None:
    one, two = Counts(), Largest()
    pipeline = ConnectorPipelineV2(connectors=[one, Piece(), two])
    assert pipeline[0] is pipeline["Counts"] is one
    assert pipeline[Counts] == [one, two]
    assert pipeline[1:] == pipeline.connectors[1:]


# ---- calls ----


def test_a_piece_that_gives_no_batch_is_named_as_a_mistake_of_the_pipeline() -> None:
    class Forgets(ConnectorV2):
        def __call__(self, **_: Any) -> Batch:
            return None  # type: ignore[return-value]

    with pytest.raises(BadPiece, match="Forgets_2") as caught:
        nested = ConnectorPipelineV2(connectors=[Piece(), ConnectorPipelineV2(connectors=[Piece()])])
        nested.append(type("Forgets", (Piece,), {})())
        nested.append(Forgets())
        nested(episodes=[])
    assert isinstance(caught.value, BadConfig)


def test_an_error_in_a_piece_stays_what_it_is_with_a_note_that_names_the_piece() -> None:
    class Breaks(ConnectorV2):
        def __call__(self, **_: Any) -> Batch:
            raise KeyError("velocity")

    with pytest.raises(KeyError, match="velocity") as caught:
        ConnectorPipelineV2(connectors=[Piece(), ConnectorPipelineV2(connectors=[Breaks()])])(episodes=[])
    assert caught.value.__notes__ == ["in connector piece Breaks", "in connector piece ConnectorPipelineV2"]


def test_every_piece_gets_the_same_shared_data_and_what_else_was_given() -> None:
    seen: list[Any] = []

    class Looks(ConnectorV2):
        def __call__(self, *, batch: Batch, shared_data: Any, explore: Any, rl_module: Any, color: Any, **_: Any) -> Batch:
            seen.append((id(shared_data), explore, rl_module, color))
            return batch

    pipeline = ConnectorPipelineV2(connectors=[Looks(), ConnectorPipelineV2(connectors=[Looks()])])
    pipeline(episodes=[], explore=True, rl_module="module", color="red")
    assert seen[0] == seen[1]
    assert seen[0][1:] == (True, "module", "red")


def test_what_a_nested_pipeline_does_to_whole_arrays_is_seen_after_it() -> None:
    class Halves(ConnectorV2):
        whole_arrays = True

        def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **_: Any) -> Any:
            return batch, episodes.select([0])

        def __call__(self, **_: Any) -> Batch:
            raise AssertionError

    class Looks(ConnectorV2):
        whole_arrays = True

        def __call__(self, *, batch: Batch, episodes: Any, **_: Any) -> Batch:
            return {"ids": [episode.id_ for episode in episodes]}

    pipeline = ConnectorPipelineV2(connectors=[ConnectorPipelineV2(connectors=[Halves()]), Looks()])
    assert pipeline(episodes=two_episodes()) == {"ids": ["a"]}


def two_episodes() -> EpisodeBatch:
    zeros = np.zeros(2)
    flags = np.zeros(2, bool)
    return EpisodeBatch(("a", "b"), np.array([0, 1, 2]), np.zeros(4), zeros, zeros, flags, flags)


# ---- spaces ----


def test_a_piece_that_cannot_take_the_spaces_before_it_is_named_before_any_data() -> None:
    with pytest.raises(SpaceMismatch, match=r"Doubles_2.*wants three"):
        ConnectorPipelineV2(VECTOR, ACTIONS, connectors=[Doubles(), Doubles()])


def test_our_own_pieces_say_what_they_got_and_wanted() -> None:
    with pytest.raises(SpaceMismatch) as caught:
        ConnectorPipelineV2(spaces.Discrete(2), ACTIONS, connectors=[Piece(), FrameStacking(num_frames=2)])
    assert caught.value.where == "piece FrameStacking"


def test_the_older_hooks_that_look_at_the_piece_itself_are_asked() -> None:
    class Older(Piece):
        def recompute_observation_space_from_input_spaces(self) -> Any:
            assert self.input_observation_space is not None
            return spaces.Box(0, 1, (self.input_observation_space.n,), np.float32)

        def recompute_action_space_from_input_spaces(self) -> Any:
            return spaces.Discrete(7)

    pipeline = ConnectorPipelineV2(spaces.Discrete(4), ACTIONS, connectors=[Older()])
    assert pipeline.observation_space == spaces.Box(0, 1, (4,), np.float32)
    assert pipeline.action_space == spaces.Discrete(7)


# ---- states ----


def test_a_state_reaches_the_piece_it_is_from() -> None:
    """The first piece has no state at all: pairing states with pieces by their place would give them to the wrong ones."""
    pipeline = ConnectorPipelineV2(connectors=[Counts(), Counts(), ConnectorPipelineV2(connectors=[Counts()]), Counts()])
    state = {"Counts_2": {"number": 5}, "ConnectorPipelineV2": {"Counts": {"number": 3}}, "Counts_3": {"number": 10}}
    pipeline.set_state(state)
    assert pipeline.get_state() == state


def test_memory_that_does_not_suffice_for_the_spaces_of_a_piece_is_no_misfit() -> None:
    class Huge(Piece):
        def recompute_output_observation_space(self, observations: Any, actions: Any) -> Any:
            raise MemoryError

    with pytest.raises(MemoryError):
        ConnectorPipelineV2(VECTOR, ACTIONS, connectors=[Huge()])
