"""MultiAgentEpisode: steps of several agents, pieces, states. What RLlib does alike is in test_multi_agent_against_rllib.py."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import pytest

from offline_cli import MultiAgentEpisode
from offline_cli.errors import BadEpisode, EpisodeIndexError, EpisodeKeyError

OBSERVATIONS = [{"a": 0, "b": 0}, {"b": 1}, {"b": 2}, {"a": 3, "b": 3}, {"a": 4}]
ACTIONS = OBSERVATIONS[:-1]
REWARDS = [dict.fromkeys(step, 1.0 + t) for t, step in enumerate(ACTIONS)]


def sparse(**options: Any) -> MultiAgentEpisode:
    """Agent b sees something at 0, 1, 2, 3, agent a at 0, 3, 4; each acts on all but its last, b's last action hangs."""
    given: dict[str, Any] = {"id_": "e", "len_lookback_buffer": 0, **options}
    return MultiAgentEpisode(observations=OBSERVATIONS, actions=ACTIONS, rewards=REWARDS, **given)


def begun(*agents: str, **options: Any) -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_="e", **options)
    episode.add_env_reset(observations=dict.fromkeys(agents, 0))
    return episode


def held(episode: MultiAgentEpisode) -> dict[str, Any]:
    """What a state holds, times of day and functions left out."""
    state = episode.get_state()
    del state["agent_to_module_mapping_fn"]
    state["env_t_to_agent_t"] = {agent: (list(t.data), t.lookback) for agent, t in state["env_t_to_agent_t"].items()}
    for _, part in state["agent_episodes"]:
        del part["_start_time"], part["_last_step_time"]
    return state


# ---- steps ----


def test_agents_have_episodes_that_say_whose_they_are_and_a_module_asked_for_once() -> None:
    answers = iter("xyz")
    episode = begun(
        "a", (0, 1), agent_to_module_mapping_fn=lambda agent, episode: next(answers), agent_module_ids={"c": "given"}
    )
    part = episode.agent_episodes[0, 1]
    assert (part.agent_id, part.module_id, part.multi_agent_episode_id) == ((0, 1), "y", "e")
    assert [episode.module_for(agent) for agent in ("a", "c", (0, 1))] == ["x", "given", "y"]
    assert episode.get_observations(0, (0, 1)) == {(0, 1): 0}


@pytest.mark.parametrize(
    ("terminateds", "truncateds", "want"),
    [
        ({"__all__": True}, {}, (True, False)),
        ({}, {"a": True, "b": True}, (False, True)),
        ({"a": True}, {"b": True}, (True, False)),
        ({"a": True}, {}, (False, False)),
    ],
)
def test_an_episode_is_done_by_all_or_once_every_agent_is(
    terminateds: dict[str, bool], truncateds: dict[str, bool], want: tuple[bool, bool]
) -> None:
    episode = begun("a", "b")
    step = ({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0})
    episode.add_env_step(*step, terminateds=terminateds, truncateds=truncateds)
    assert (episode.is_terminated, episode.get_truncateds()["__all__"]) == want
    assert episode.agent_episodes["b"].is_terminated == terminateds.get("__all__", False)


REFUSED: list[dict[str, Any]] = [
    {"actions": {"new": 0}},  # before its first observation
    {"actions": {"hangs": 0}},  # again
    {"observations": {"waits": 1}},  # another one
    {"observations": {"waits": 1}, "actions": {"waits": 0}},  # no reward
    {"rewards": {"done": 1.0}},
    {"truncateds": {"hangs": True}},  # without a last observation
    {"actions": {"waits": 0}, "extra_model_outputs": {"waits": {"logp": 0.0}}},  # not those before
]


@pytest.mark.parametrize("step", REFUSED, ids=str)
def test_a_step_that_cannot_be_names_the_agent_and_changes_nothing(step: dict[str, Any]) -> None:
    episode = begun("waits", "hangs", "done")
    given = dict.fromkeys(("waits", "hangs", "done"), 0)
    episode.add_env_step({"waits": 1, "done": 1}, given, dict.fromkeys(given, 0.0), terminateds={"done": True})
    before = pickle.dumps(held(episode))
    with pytest.raises(BadEpisode) as caught:
        episode.add_env_step(**{"observations": {"first": 0}, "actions": {}, "rewards": {}, **step})
    assert any(repr(agent) in str(caught.value) for kind in step.values() for agent in kind)
    assert pickle.dumps(held(episode)) == before


def test_nothing_comes_before_the_first_reset_or_after_the_end() -> None:
    episode = begun("a")
    with pytest.raises(BadEpisode):
        episode.add_env_reset(observations={"a": 1})
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": 0.0}, terminateds={"__all__": True})
    with pytest.raises(BadEpisode):
        episode.add_env_step({"a": 1}, {"a": 0}, {"a": 0.0})
    with pytest.raises(BadEpisode):
        episode.cut()


def test_an_agent_terminated_without_an_observation_sees_its_last_one_again() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0}, infos={"a": {"n": 1}, "nobody": {}})
    episode.add_env_step({"b": 1}, {"a": 7, "b": 0}, {"b": 0.0})
    episode.add_env_step({"b": 2}, {"b": 0}, {"a": 9.0, "b": 0.0}, terminateds={"a": True})
    part = episode.agent_episodes["a"]
    assert (part.get_observations(), part.get_rewards(), part.is_terminated) == ([0, 0], [9.0], True)
    assert part.get_infos() == [{"n": 1}, {"n": 1}]
    assert episode.env_t_to_agent_t["a"].data == [0, "S", 1]


def test_an_agent_that_ends_while_it_waits_gets_its_last_reward_with_its_last_step() -> None:
    episode = begun("a", "b")
    episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 1.0, "b": 1.0})
    episode.add_env_step({"b": 2}, {"b": 0}, {"a": -10.0, "b": 1.0}, terminateds={"a": True})
    part = episode.agent_episodes["a"]
    assert (part.get_rewards(), part.is_terminated, len(part)) == ([-9.0], True, 1)


def test_rewards_between_observation_and_action_belong_to_the_step_that_follows() -> None:
    episode = begun("a", "b")
    episode.add_env_step({"b": 1}, {"b": 0}, {"a": 2.0, "b": 0.0})
    episode.add_env_step({"a": 1, "b": 2}, {"a": 0, "b": 0}, {"a": 1.0, "b": 0.0})
    assert episode.agent_episodes["a"].get_rewards() == [3.0]


def test_a_step_that_one_agents_space_refuses_is_added_to_no_agent() -> None:
    spaces = {agent: gym.spaces.Discrete(3) for agent in "ab"}
    episode = begun("a", "b", observation_space=spaces, action_space=spaces)
    episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0})
    episode.to_numpy()
    with pytest.raises(BadEpisode, match="Discrete"):
        episode.add_env_step({"a": 1, "b": 9}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0})
    assert (len(episode), episode.agent_steps()) == (1, 2)


# ---- construction ----


def test_given_steps_are_lookback_buffer_unless_told_otherwise_and_flags_and_ids_reach_every_agent() -> None:
    assert [len(sparse(len_lookback_buffer=lookback)) for lookback in ("auto", 0, 3)] == [0, 4, 1]
    lists: dict[str, Any] = {"observations": [{"a": 0, "b": 0}, {"a": 1, "b": 1}], "actions": [{"a": 0, "b": 0}]}
    episode = MultiAgentEpisode(**lists, rewards=[{}], truncateds=True, agent_episode_ids={"a": "e-a"})
    assert episode.get_truncateds() == {"a": True, "b": True, "__all__": True}
    assert episode.agent_episodes["a"].id_ == "e-a"


@pytest.mark.parametrize(
    "options",
    [
        {"observations": [{"a": 0}] * 3, "actions": [{"a": 0}]},
        {"actions": [{"a": 0}]},
        {"observations": [{"a": 0}], "infos": []},
        {"len_lookback_buffer": -1},
    ],
)
def test_lists_of_other_lengths_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadEpisode):
        MultiAgentEpisode(**options)


def test_an_agents_lookback_buffer_holds_its_steps_within_the_environments() -> None:
    episode = sparse(len_lookback_buffer=2, env_t_started=10, agent_t_started={"b": 5})
    a, b = episode.agent_episodes["a"], episode.agent_episodes["b"]
    assert (a.observations.lookback, a.t_started, a.t) == (1, 0, 1)
    assert (b.observations.lookback, b.t_started, b.t) == (2, 5, 6)
    assert (episode.env_t_started, episode.env_t) == (10, 12)
    assert episode.get_actions(-2, neg_index_as_lookback=True) == {"a": 0, "b": 0}
    assert episode.get_actions(0) == {"b": 2}


def test_an_agent_that_others_left_behind_is_terminated_and_without_steps_is_gone() -> None:
    episode = MultiAgentEpisode(
        observations=[{"a": 0, "b": 0, "c": 0}, {"a": 1, "b": 1}, {"a": 2}],
        actions=[{"a": 0, "b": 0}, {"a": 0}],
        rewards=[{"a": 0.0, "b": 1.0}, {"a": 0.0, "b": 2.0}],
        len_lookback_buffer=0,
    )
    assert episode.get_terminateds() == {"a": False, "b": True, "__all__": False}
    assert episode.get_rewards()["b"] == [3.0]  # with what came after it had acted last
    assert episode.get_observations(-1) == {"a": 2}


# ---- getters ----


def test_extra_model_outputs_come_from_agents_that_have_them() -> None:
    episode = begun("a", "b")
    outputs = {"a": {"logp": -1.0, "vf": 2.0}, "b": {"logp": -3.0}}
    episode.add_env_step({"b": 1}, {"a": 0, "b": 0}, {"b": 0.0}, extra_model_outputs=outputs)
    assert episode.get_extra_model_outputs("vf") == {"a": [2.0]}
    assert episode.get_extra_model_outputs("logp", 0) == {"a": -1.0, "b": -3.0}
    with pytest.raises(EpisodeKeyError):
        episode.get_extra_model_outputs("other")


def test_an_index_outside_is_an_index_error() -> None:
    for options in ({}, {"env_steps": False}):
        with pytest.raises(EpisodeIndexError):
            sparse().get_observations(5, **options)


# ---- chunks ----


def test_a_cut_episode_goes_on_with_what_hangs_and_all_agents_that_go_on() -> None:
    episode = begun("waits", "hangs", "done")
    episode.custom_data["seed"] = [3]
    acts = {"hangs": 5, "done": 0}
    episode.add_env_step({"done": 1}, acts, {"hangs": 2.0, "done": 0.0}, terminateds={"done": True})
    chunk = episode.cut()
    assert (chunk.id_, len(chunk), chunk.env_t_started) == ("e", 0, 1)
    assert chunk.agent_ids >= {"waits", "hangs"}
    assert (chunk._hanging_actions_end, chunk._hanging_rewards_end) == ({"hangs": 5}, {"hangs": 2.0})
    assert chunk.custom_data == {"seed": [3]}
    assert chunk.custom_data["seed"] is not episode.custom_data["seed"]


def test_an_agent_that_is_done_is_in_the_next_chunk_only_if_its_lookback_buffer_shows_steps() -> None:
    episode = begun("a", "b")
    for t in range(3):
        acts = dict.fromkeys(episode.get_agents_to_act(), 0)
        episode.add_env_step(dict.fromkeys(acts, t), acts, dict.fromkeys(acts, 0.0), terminateds={"b": t == 1})
    assert episode.cut(len_lookback_buffer=1).agent_ids == {"a"}
    chunk = episode.cut(len_lookback_buffer=2)
    assert chunk.get_actions(-2, neg_index_as_lookback=True) == {"a": 0, "b": 0}
    assert (chunk.get_agents_to_act(), chunk.agent_episodes["b"].t_started) == ({"a"}, 2)


# ---- states ----


def test_a_state_that_was_pickled_gives_the_episode_back() -> None:
    episode = sparse(len_lookback_buffer=1, env_t_started=3).to_numpy()
    again = MultiAgentEpisode.from_state(pickle.loads(pickle.dumps(episode.get_state())))
    assert pickle.dumps(held(again)) == pickle.dumps(held(episode))


@pytest.mark.parametrize(
    ("tags", "want"),
    [
        ([0, "S", "S", 1], [0, "S", 1]),  # for a repeated observation
        ([0, 1], [0, 1, "S"]),  # after an early end
        (["S", "S", "S", 0, 1], ["S", 0, 1]),  # of an agent that came late in a chunk
    ],
)
def test_timelines_that_rllib_made_too_long_or_too_short_are_mended(tags: list[Any], want: list[Any]) -> None:
    episode = begun("a", "b")
    ends = {1: {"a": 1, "b": 1}, 2: {"b": 2}} if want[-1] == "S" else {1: {"b": 1}, 2: {"a": 1, "b": 2}}
    if want[0] == "S":
        episode, ends = begun("b"), {1: {"a": 0, "b": 1}, 2: {"a": 1, "b": 2}}
    for t, seen in ends.items():
        acts = dict.fromkeys(episode.get_agents_to_act(), 0)
        done = {"a": t == (1 if want[-1] == "S" else 2)}
        episode.add_env_step(seen, acts, dict.fromkeys(acts | seen, 0.0), terminateds=done)
    state = episode.get_state()
    assert state["env_t_to_agent_t"]["a"].data == want
    state["env_t_to_agent_t"]["a"].data = tags
    assert MultiAgentEpisode.from_state(state).env_t_to_agent_t["a"].data == want


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(BadEpisode):
        MultiAgentEpisode.from_state({"id_": "x"})
