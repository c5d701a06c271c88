"""The helpers that RLlib's pieces call: walking over episodes, filing items, changing them in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_cli import MultiAgentEpisode, SingleAgentEpisode
from offline_cli.connectors import BatchIndividualItems, ConnectorV2
from offline_cli.connectors.connector_v2 import Batch


@pytest.fixture
def two_agents() -> MultiAgentEpisode:
    """After one step at which ann alone saw something."""
    episode = MultiAgentEpisode("whole", agent_to_module_mapping_fn=lambda agent, *_: f"module of {agent}")
    episode.add_env_reset(observations={"ann": 0.0, "bob": 1.0})
    episode.add_env_step(observations={"ann": 2.0}, actions={"ann": 0, "bob": 1}, rewards={"ann": 1.0})
    return episode


def agents(episodes: Any) -> list[Any]:
    return [episode.agent_id for episode in episodes]


def test_multi_agent_episodes_are_taken_apart_agent_by_agent(two_agents: MultiAgentEpisode) -> None:
    assert agents(ConnectorV2.single_agent_episode_iterator([two_agents], agents_that_stepped_only=False)) == ["ann", "bob"]


def test_agents_that_have_not_stepped_are_left_out_unless_asked_for(two_agents: MultiAgentEpisode) -> None:
    assert agents(ConnectorV2.single_agent_episode_iterator([two_agents])) == ["ann"]


def test_each_episode_comes_with_its_item() -> None:
    episodes = [SingleAgentEpisode("a"), SingleAgentEpisode("b")]
    in_order = ConnectorV2.single_agent_episode_iterator(episodes, zip_with_batch_column=[10, 20])
    by_key = ConnectorV2.single_agent_episode_iterator(episodes, zip_with_batch_column={("b",): [20], ("a",): [10]})
    assert [item for _, item in in_order] == [item for _, item in by_key] == [10, 20]


def test_items_of_agents_are_filed_by_episode_agent_and_module(two_agents: MultiAgentEpisode) -> None:
    batch: Batch = {}
    for episode in ConnectorV2.single_agent_episode_iterator([two_agents], agents_that_stepped_only=False):
        ConnectorV2.add_batch_item(batch, "x", 1, episode)
    assert list(batch["x"]) == [("whole", "ann", "module of ann"), ("whole", "bob", "module of bob")]


def test_items_are_refused_once_the_batch_is_by_module() -> None:
    with pytest.raises(ValueError, match="AgentToModuleMapping"):
        ConnectorV2.add_batch_item({"m": {}}, "x", 1, SingleAgentEpisode("a", agent_id="ann", module_id="m"))


def test_single_items_and_stacked_ones_are_stacked_together_in_order() -> None:
    batch: Batch = {}
    episode = SingleAgentEpisode("a")
    ConnectorV2.add_n_batch_items(batch, "x", {"p": np.array([[1.0], [2.0]])}, 2, episode)
    ConnectorV2.add_batch_item(batch, "x", {"p": np.array([3.0])}, episode)
    assert BatchIndividualItems()(batch=batch)["x"]["p"].tolist() == [[1], [2], [3]]


def test_items_are_changed_in_place_with_the_ids_of_their_episode(two_agents: MultiAgentEpisode) -> None:
    batch: Batch = {"x": {("e", "ann", "m"): [1, 2]}, "y": {("e", "ann", "m"): [10, 20]}}
    seen = []

    def swapped(items: Any, *ids: Any) -> Any:
        seen.append(ids)
        return items[1], items[0]

    ConnectorV2.foreach_batch_item_change_in_place(batch, ["x", "y"], swapped)
    assert batch == {"x": {("e", "ann", "m"): [10, 20]}, "y": {("e", "ann", "m"): [1, 2]}}
    assert seen == [("e", "ann", "m")] * 2


def test_changing_a_column_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"'y'.*'x'"):
        ConnectorV2.foreach_batch_item_change_in_place({"x": [1]}, "y", lambda item, *_: item)


def filed() -> Batch:
    """Columns of two numpy'ized episodes."""
    batch: Batch = {}
    for id_, steps in (("a", 2), ("b", 3)):
        episode = SingleAgentEpisode(id_)
        ConnectorV2.add_n_batch_items(batch, "rewards", np.arange(float(steps)), steps, episode)
        ConnectorV2.add_n_batch_items(batch, "obs", {"p": np.ones((steps, 2))}, steps, episode)
        ConnectorV2.add_n_batch_items(batch, "terminateds", np.arange(steps) == steps - 1, steps, episode)
        ConnectorV2.add_n_batch_items(batch, "notes", list(range(steps)), steps, episode)
    return batch


def test_the_steps_of_a_numpyized_episode_are_changed_at_once() -> None:
    batch, seen = filed(), []

    def doubled(rows: Any, *ids: Any) -> Any:
        seen.append((rows.shape, *ids))
        rows *= 2  # in place, as pieces may
        return rows

    ConnectorV2.foreach_batch_item_change_in_place(batch, "rewards", doubled)
    assert seen == [((2,), "a", None, None), ((3,), "b", None, None)]
    assert BatchIndividualItems()(batch=batch)["rewards"].tolist() == [0, 2, 0, 2, 4]


def test_columns_by_module_become_modules_by_column() -> None:
    by_column = {"obs": {"left": 1, "right": 2}, "rewards": {"left": 3}}
    by_module = ConnectorV2.switch_batch_from_column_to_module_ids(by_column)
    assert by_module == {"left": {"obs": 1, "rewards": 3}, "right": {"obs": 2}}
