"""MultiAgentEpisode: steps of several agents, pieces, states. What RLlib does alike is in test_multi_agent_against_rllib.py."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import offline_cli
from offline_cli.episodes.multi_agent.multi_agent_episode import MultiAgentEpisode
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode, EpisodeIndexError, EpisodeKeyError, UsageError

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
    for name in ("_start_time", "_last_step_time", "agent_to_module_mapping_fn"):
        del state[name]
    state["env_t_to_agent_t"] = {agent: (list(t.data), t.lookback) for agent, t in state["env_t_to_agent_t"].items()}
    for _, part in state["agent_episodes"]:
        del part["_start_time"], part["_last_step_time"]
    return state


# ---- steps ----


def test_the_public_name_is_this_class() -> None:
    assert offline_cli.MultiAgentEpisode is MultiAgentEpisode


def test_each_agent_has_a_single_agent_episode_that_says_whose_it_is() -> None:
    episode = begun("a", "b", agent_to_module_mapping_fn=lambda agent, episode: f"m-{agent}-{episode.id_}")
    part = episode.agent_episodes["b"]
    assert isinstance(part, SingleAgentEpisode)
    assert (part.agent_id, part.module_id, part.multi_agent_episode_id) == ("b", "m-b-e", "e")


def test_a_module_is_asked_for_once_per_agent() -> None:
    answers = iter("xyz")
    episode = begun("a", agent_to_module_mapping_fn=lambda agent, episode: next(answers), agent_module_ids={"c": "given"})
    assert [episode.module_for(agent) for agent in "aacb"] == ["x", "x", "given", "y"]


def test_the_default_module_is_the_one_of_rllib() -> None:
    assert begun("a").module_for("a") == "default_policy"


def test_an_action_hangs_until_the_next_observation_and_gathers_rewards() -> None:
    episode = begun("a", "b")
    episode.add_env_step({"b": 1}, {"a": 7, "b": 0}, {"a": 1.0, "b": 0.0}, extra_model_outputs={"a": {"logp": -1.0}, "b": {}})
    episode.add_env_step({"b": 2}, {"b": 0}, {"a": 2.0, "b": 0.0}, extra_model_outputs={"b": {}})
    assert len(episode.agent_episodes["a"]) == 0
    assert episode.get_return() == 0
    assert episode.get_return(include_hanging_rewards=True) == 3
    episode.add_env_step({"a": 3}, {"b": 1}, {"a": 4.0}, extra_model_outputs={"b": {}})
    part = episode.agent_episodes["a"]
    assert (part.get_actions(), part.get_rewards(), part.get_extra_model_outputs("logp")) == ([7], [7.0], [-1.0])
    assert episode.env_t_to_agent_t["a"].data == [0, "S", "S", 1]


def test_agents_to_act_saw_something_last_and_are_not_done() -> None:
    episode = begun("a", "b", "c")
    episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0, "c": 0}, {"a": 0.0, "b": 0.0}, terminateds={"b": True})
    assert episode.get_agents_that_stepped() == {"a", "b"}
    assert episode.get_agents_to_act() == {"a"}


def test_an_agent_that_comes_late_starts_at_its_own_timestep_0() -> None:
    episode = begun("a")
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": 0.0, "late": 5.0})
    episode.add_env_step({"a": 2, "late": 9}, {"a": 0}, {"a": 0.0})
    episode.add_env_step({"a": 3, "late": 8}, {"a": 0, "late": 1}, {"a": 0.0, "late": 1.0})
    assert episode.env_t_to_agent_t["late"].data == ["S", "S", 0, 1]
    assert episode.agent_episodes["late"].get_rewards() == [1.0]  # rewards from before it saw anything belong to no step
    assert episode.get_return(include_hanging_rewards=True) == 6


def test_agents_keep_the_order_in_which_they_came() -> None:
    episode = begun("z", "y")
    episode.add_env_step({"x": 0, "w": 0, "a": 0}, {}, {})
    assert list(episode.agent_episodes) == ["z", "y", "x", "w", "a"]


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


@pytest.mark.parametrize(
    ("terminateds", "truncateds", "want"),
    [
        ({"__all__": True}, {}, (True, False)),
        ({}, {"__all__": True}, (False, True)),
        ({"a": True, "b": True}, {}, (True, False)),
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
    assert (episode.is_terminated, episode.is_truncated) == want
    assert episode.get_truncateds()["__all__"] == want[1]
    everybody = terminateds.get("__all__", False)
    assert episode.agent_episodes["b"].is_terminated == (terminateds.get("b", False) or everybody)


def test_an_agent_that_comes_when_all_others_end_goes_on() -> None:
    episode = begun("a")
    episode.add_env_step({"a": 1, "b": 0}, {"a": 0}, {"a": 1.0}, terminateds={"a": True})
    assert not episode.is_done
    assert episode.get_agents_to_act() == {"b"}


REFUSED: dict[str, dict[str, Any]] = {
    "acts before its first observation": {"actions": {"new": 0}},
    "acts again before the next observation": {"actions": {"hangs": 0}},
    "another observation without having acted": {"observations": {"waits": 1}},
    "no reward": {"observations": {"waits": 1}, "actions": {"waits": 0}},
    "is done, yet was given data": {"rewards": {"done": 1.0}},
    "without a last observation": {"truncateds": {"hangs": True}},
    "extra model outputs": {"actions": {"waits": 0}, "extra_model_outputs": {"waits": {"logp": 0.0}}},
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_step_that_cannot_be_names_the_agent_and_changes_nothing(what: str) -> None:
    episode = begun("waits", "hangs", "done")
    given = dict.fromkeys(("waits", "hangs", "done"), 0)
    episode.add_env_step({"waits": 1, "done": 1}, given, dict.fromkeys(given, 0.0), terminateds={"done": True})
    before = pickle.dumps(held(episode))
    step: dict[str, Any] = {"observations": {"first": 0}, "actions": {}, "rewards": {}, **REFUSED[what]}
    with pytest.raises(BadEpisode, match=what) as caught:
        episode.add_env_step(**step)
    agent = next(name for name in ("new", "hangs", "waits", "done") if any(name in part for part in REFUSED[what].values()))
    assert agent in str(caught.value)
    assert pickle.dumps(held(episode)) == before


def test_a_step_that_one_agents_space_refuses_is_added_to_no_agent() -> None:
    spaces = {agent: gym.spaces.Discrete(3) for agent in "ab"}
    episode = begun("a", "b", observation_space=spaces, action_space=spaces)
    episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0})
    episode.to_numpy()
    with pytest.raises(BadEpisode, match="outside Discrete"):
        episode.add_env_step({"a": 1, "b": 9}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0})
    assert (len(episode), episode.agent_steps()) == (1, 2)


def test_a_reset_of_an_episode_that_has_begun_is_refused() -> None:
    with pytest.raises(BadEpisode, match="has begun"):
        begun("a").add_env_reset(observations={"a": 1})


def test_a_step_after_the_end_is_refused() -> None:
    episode = begun("a")
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": 0.0}, terminateds={"__all__": True})
    with pytest.raises(BadEpisode, match="after the episode was done"):
        episode.add_env_step({"a": 1}, {"a": 0}, {"a": 0.0})


# ---- construction ----


def test_given_steps_are_lookback_buffer_unless_told_otherwise() -> None:
    assert len(sparse(len_lookback_buffer="auto")) == 0
    assert len(sparse()) == 4
    assert len(sparse(len_lookback_buffer=3)) == 1


def test_an_agents_lookback_buffer_holds_its_steps_within_the_environments() -> None:
    episode = sparse(len_lookback_buffer=2, env_t_started=10, agent_t_started={"b": 5})
    a, b = episode.agent_episodes["a"], episode.agent_episodes["b"]
    assert (a.observations.lookback, a.t_started, a.t) == (1, 0, 1)
    assert (b.observations.lookback, b.t_started, b.t) == (2, 5, 6)
    assert (episode.env_t_started, episode.env_t, episode.agent_t_started) == (10, 12, {"a": 0, "b": 5})
    assert episode.get_actions(-2, neg_index_as_lookback=True) == {"a": 0, "b": 0}
    assert episode.get_actions(0) == {"b": 2}


def test_the_last_of_as_many_actions_as_observations_hang() -> None:
    episode = MultiAgentEpisode(observations=[{"a": 0}, {"a": 1}], actions=[{"a": 5}, {"a": 6}], rewards=[{"a": 1.0}] * 2)
    assert (episode.moments, episode.get_actions(-1, env_steps=False)) == (2, {"a": 6})
    assert held(episode[:])["_hanging_actions_end"] == held(episode.cut())["_hanging_actions_end"] == {"a": 6}
    assert episode.get_actions(slice(-1, 2), neg_index_as_lookback=True, fill=-1) == {"a": [5, -1, -1]}  # not a step so far


def test_one_flag_for_all_reaches_every_agent() -> None:
    lists: dict[str, Any] = {
        "observations": [{"a": 0, "b": 0}, {"a": 1, "b": 1}],
        "actions": [{"a": 0, "b": 0}],
        "rewards": [{}],
    }
    episode = MultiAgentEpisode(**lists, truncateds=True)
    assert episode.get_truncateds() == {"a": True, "b": True, "__all__": True}


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


def test_ids_are_taken_over() -> None:
    episode = sparse(agent_episode_ids={"a": "e-a"}, agent_module_ids={"a": "m"})
    assert episode.agent_episode_ids["a"] == episode.agent_episodes["a"].id_ == "e-a"
    assert episode.agent_episodes["a"].module_id == "m"


@pytest.mark.parametrize(
    ("lists", "what"),
    [
        ({"observations": [{"a": 0}] * 3, "actions": [{"a": 0}]}, r"3 observations, 1 actions \(2 or 3 wanted\), 0 rewards"),
        ({"actions": [{"a": 0}]}, r"0 observations, 1 actions \(0 wanted\)"),
        ({"observations": [{"a": 0}], "infos": []}, r"0 infos \(1 wanted\)"),
    ],
)
def test_lists_of_other_lengths_are_refused_with_names_and_numbers(lists: dict[str, Any], what: str) -> None:
    with pytest.raises(BadEpisode, match=what):
        MultiAgentEpisode(**lists)


def test_a_lookback_that_is_no_number_is_refused() -> None:
    with pytest.raises(BadEpisode, match="len_lookback_buffer=-1"):
        MultiAgentEpisode(len_lookback_buffer=-1)


# ---- getters ----


def test_getters_go_by_environment_timesteps_and_leave_out_who_saw_nothing() -> None:
    episode = sparse()
    assert episode.get_observations(1) == {"b": 1}
    assert episode.get_observations([0, 3]) == {"a": [0, 3], "b": [0, 3]}
    assert episode.get_observations(slice(3, None), return_list=True) == [{"a": 3, "b": 3}, {"a": 4}]
    assert episode.get_rewards(-1) == {"a": 4.0, "b": 4.0}  # b's is what it got so far for the action that hangs


def test_getters_can_go_by_the_agents_own_timesteps() -> None:
    assert sparse().get_actions(-1, env_steps=False) == {"a": 3, "b": 3}
    assert sparse().get_actions(env_steps=False) == {"a": [0, 3], "b": [0, 1, 2, 3]}


def test_fill_stands_for_every_moment_at_which_an_agent_saw_nothing() -> None:
    assert sparse().get_observations(slice(-2, 3), fill=-1, neg_index_as_lookback=True) == {
        "a": [-1, -1, 0, -1, -1],
        "b": [-1, -1, 0, 1, 2],
    }


def test_agents_are_chosen_by_id_list_or_set() -> None:
    episode = sparse()
    for chosen in ("a", ["a"], {"a", "nobody"}, ("a",)):
        assert episode.get_observations(0, chosen) == {"a": 0}
    assert episode.get_observations(0, []) == {}


def test_ids_may_be_tuples() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={(0, 1): 5, (0, 2): 6})
    assert episode.get_observations(0, (0, 1)) == {(0, 1): 5}


def test_extra_model_outputs_come_by_name_or_all_at_once_from_agents_that_have_them() -> None:
    episode = begun("a", "b")
    outputs = {"a": {"logp": -1.0, "vf": 2.0}, "b": {"logp": -3.0}}
    episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0}, extra_model_outputs=outputs)
    assert episode.get_extra_model_outputs("vf") == {"a": [2.0]}
    assert episode.get_extra_model_outputs() == {"a": {"logp": [-1.0], "vf": [2.0]}, "b": {"logp": [-3.0]}}
    assert episode.get_extra_model_outputs(indices=0, return_list=False) == outputs
    with pytest.raises(EpisodeKeyError, match="no extra model output 'other'"):
        episode.get_extra_model_outputs("other")


def test_numpy_gives_arrays_and_what_hangs_is_among_them() -> None:
    episode = sparse().to_numpy()
    assert episode.is_numpy
    actions = episode.get_actions()
    np.testing.assert_array_equal(actions["a"], [0, 3])
    np.testing.assert_array_equal(actions["b"], [0, 1, 2, 3])
    np.testing.assert_array_equal(episode.get_rewards(slice(0, 4), fill=0.0)["a"], [1.0, 0.0, 0.0, 4.0])


def test_an_index_outside_is_an_index_error_that_says_how_many_there_are() -> None:
    with pytest.raises(EpisodeIndexError, match="no environment timestep 5: there are 5 from 0 on, 0 before"):
        sparse().get_observations(5)
    with pytest.raises(IndexError, match="no record at timestep 3"):
        sparse().get_observations(3, env_steps=False)


def test_a_list_by_the_agents_own_timesteps_is_refused() -> None:
    with pytest.raises(BadEpisode, match="as a list"):
        sparse().get_observations(env_steps=False, return_list=True)


def test_setters_write_by_agent_and_refuse_unknown_ones_before_they_write() -> None:
    episode = sparse()
    episode.set_rewards(new_data={"b": [9.0, 9.0, 9.0]})
    assert episode.get_rewards(slice(0, 3))["b"] == [9.0, 9.0, 9.0]
    with pytest.raises(EpisodeKeyError, match="no agent 'nobody'"):
        episode.set_observations(new_data={"a": 7, "nobody": 7}, at_indices=0)
    assert episode.get_observations(0)["a"] == 0


# ---- pieces ----


def test_a_slice_keeps_the_steps_that_begin_in_it_and_lets_the_unfinished_hang() -> None:
    piece = sparse()[:2]
    assert piece.agent_episodes["a"].get_observations() == [0]
    assert (piece._hanging_actions_end, piece._hanging_rewards_end) == ({"a": 0}, {"a": 1.0})
    piece = sparse()[1:3]
    assert (piece.agent_episodes["a"].get_observations(), piece.agent_episodes["a"].t_started) == ([3], 1)
    assert piece.agent_episodes["b"].get_actions() == [1, 2]


def test_a_slice_of_everything_is_the_episode() -> None:
    episode = sparse(infos=[{"a": {"n": t}, "b": {"n": -t}} for t in range(5)])
    assert held(episode[:]) == held(episode)


def test_a_slice_with_lookback_sees_the_steps_before_it() -> None:
    piece = sparse().slice(slice(2, 4), len_lookback_buffer=1)
    assert piece.get_observations(-1, neg_index_as_lookback=True) == {"b": 1}
    assert (piece.env_t_started, len(piece)) == (2, 2)


def test_slices_of_arrays_share_them_until_one_side_is_written() -> None:
    episode = sparse().to_numpy()
    piece = episode[1:]
    assert np.shares_memory(piece.agent_episodes["b"].observations.data, episode.agent_episodes["b"].observations.data)
    piece.set_observations(new_data={"b": 99}, at_indices=0)
    assert episode.get_observations(1)["b"] == 1


def test_a_slice_that_does_not_reach_the_end_is_not_done() -> None:
    episode = begun("a")
    for t in range(3):
        episode.add_env_step({"a": t}, {"a": 0}, {"a": 1.0}, truncateds={"__all__": t == 2})
    assert (episode[:2].is_done, episode[1:].is_truncated, episode[1:].agent_episodes["a"].is_truncated) == (False, True, True)


@pytest.mark.parametrize("lookback", [0, 1, 5])
def test_chunks_that_were_cut_join_to_the_episode_that_was_not(lookback: int) -> None:
    def play(episode: MultiAgentEpisode, first: int, stop: int) -> None:
        for t in range(first, stop):
            seen = {agent: t for agent, every in (("a", 1), ("b", 3), ("late", 4)) if t % every == 0}
            acts = dict.fromkeys(episode.get_agents_to_act(), t)
            episode.add_env_step(seen, acts, dict.fromkeys(episode.agent_ids, 1.0))

    whole = begun("a", "b")
    play(whole, 1, 14)
    joined = begun("a", "b", agent_to_module_mapping_fn=whole.agent_to_module_mapping_fn)
    chunk = joined
    for first, stop in ((1, 3), (3, 6), (6, 14)):
        if first > 1:
            chunk = chunk.cut(len_lookback_buffer=lookback)
        play(chunk, first, stop)
        if chunk is not joined:
            joined.concat_episode(chunk)
    for episode in (whole, joined):
        for name, part in episode.agent_episodes.items():
            part.id_ = name
    assert held(joined) == held(whole)


def test_a_cut_episode_goes_on_with_what_hangs_and_all_agents_that_go_on() -> None:
    episode = begun("waits", "hangs", "done")
    episode.custom_data["seed"] = [3]
    acts = {"hangs": 5, "done": 0}
    episode.add_env_step({"done": 1}, acts, {"hangs": 2.0, "done": 0.0}, terminateds={"done": True})
    chunk = episode.cut()
    assert (chunk.id_, len(chunk), chunk.env_t_started) == ("e", 0, 1)
    assert chunk.agent_ids >= {"waits", "hangs"}
    assert (chunk._hanging_actions_end, chunk._hanging_rewards_end) == ({"hangs": 5}, {"hangs": 2.0})
    assert chunk.get_return(include_hanging_rewards=True) == 2
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


def test_an_agent_that_comes_late_in_a_chunk_has_a_timeline_like_the_others() -> None:
    episode = begun("a")
    for t in range(3):
        episode.add_env_step({"a": t}, {"a": 0}, {"a": 0.0})
    chunk = episode.cut(len_lookback_buffer=1)
    chunk.add_env_step({"a": 9, "late": 0}, {"a": 0}, {"a": 0.0})
    assert chunk.env_t_to_agent_t["late"].data == ["S", "S", 0]
    assert chunk.get_observations(-1) == {"a": 9, "late": 0}


def test_what_the_chunk_answered_does_not_hang_after_joining() -> None:
    episode = begun("a", "b")
    episode.add_env_step({"b": 1}, {"a": 7, "b": 0}, {"a": 1.0, "b": 0.0})
    chunk = episode.cut()
    chunk.add_env_step({"a": 1, "b": 2}, {"b": 0}, {"a": 2.0, "b": 0.0})
    episode.concat_episode(chunk)
    assert episode.get_return(include_hanging_rewards=True) == 3
    assert (episode._hanging_actions_end, episode.get_actions(0)["a"]) == ({}, 7)


def test_joining_does_not_change_the_chunk() -> None:
    episode = begun("a")
    chunk = episode.cut()
    chunk.add_env_step({"a": 1, "late": 0}, {"a": 0}, {"a": 0.0})
    before = pickle.dumps(held(chunk))
    episode.concat_episode(chunk)
    episode.add_env_step({"late": 1, "a": 2}, {"late": 0, "a": 0}, {"late": 1.0, "a": 0.0})
    assert pickle.dumps(held(chunk)) == before


def test_chunks_that_do_not_continue_each_other_are_refused_and_nothing_is_joined() -> None:
    episode = begun("a", "b")
    chunk = episode.cut()
    chunk.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0})
    chunk.agent_episodes["b"].observations.data[0] = 5
    before = pickle.dumps(held(episode))
    with pytest.raises(BadEpisode, match="first observation is not the last one here"):
        episode.concat_episode(chunk)
    with pytest.raises(BadEpisode, match="from environment timestep 0 on, this one ends at 1"):
        chunk.concat_episode(begun("a"))
    with pytest.raises(BadEpisode, match="a chunk of multi-agent episode other"):
        episode.concat_episode(MultiAgentEpisode(id_="other"))
    assert pickle.dumps(held(episode)) == before


def test_what_cannot_be_cut_or_sliced_is_refused() -> None:
    done = begun("a")
    done.add_env_step({"a": 1}, {"a": 0}, {"a": 0.0}, terminateds={"__all__": True})
    with pytest.raises(BadEpisode, match="a cut of an episode that is done"):
        done.cut()
    with pytest.raises(BadEpisode, match="a lookback of -1"):
        begun("a").cut(-1)
    with pytest.raises(BadEpisode, match="a step of 2"):
        sparse()[::2]
    with pytest.raises(BadEpisode, match=r"episode\[3\]"):
        sparse()[3]  # type: ignore[index]


# ---- states and text ----


def test_a_state_that_was_pickled_gives_the_episode_back() -> None:
    episode = sparse(len_lookback_buffer=1, env_t_started=3).to_numpy()
    again = MultiAgentEpisode.from_state(pickle.loads(pickle.dumps(episode.get_state())))
    assert pickle.dumps(held(again)) == pickle.dumps(held(episode))


def test_timelines_in_a_state_may_be_plain_dicts() -> None:
    episode = sparse(len_lookback_buffer=1)
    state = episode.get_state()
    state["env_t_to_agent_t"] = {
        agent: {"data": t.data, "lookback": t.lookback} for agent, t in state["env_t_to_agent_t"].items()
    }
    assert held(MultiAgentEpisode.from_state(state)) == held(episode)


def test_a_timeline_that_rllib_made_too_long_for_a_repeated_observation_is_mended() -> None:
    episode = begun("a", "b")
    episode.add_env_step({"b": 1}, {"a": 7, "b": 0}, {"b": 0.0})
    episode.add_env_step({"b": 2}, {"b": 0}, {"a": 9.0, "b": 0.0}, terminateds={"a": True})
    state = episode.get_state()
    state["env_t_to_agent_t"]["a"].data = [0, "S", "S", 1]
    assert MultiAgentEpisode.from_state(state).env_t_to_agent_t["a"].data == [0, "S", 1]


def test_a_timeline_that_rllib_made_too_short_for_an_early_end_is_mended() -> None:
    episode = begun("a", "b")
    episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0}, terminateds={"a": True})
    episode.add_env_step({"b": 2}, {"b": 0}, {"b": 0.0})
    state = episode.get_state()
    state["env_t_to_agent_t"]["a"].data = [0, 1]
    assert MultiAgentEpisode.from_state(state).env_t_to_agent_t["a"].data == [0, 1, "S"]


def test_a_timeline_that_rllib_made_too_long_for_a_late_agent_in_a_chunk_is_mended() -> None:
    episode = begun("a")
    for t in range(3):
        episode.add_env_step({"a": t}, {"a": 0}, {"a": 0.0})
    chunk = episode.cut()
    chunk.add_env_step({"a": 9, "late": 0}, {"a": 0}, {"a": 0.0})
    state = chunk.get_state()
    state["env_t_to_agent_t"]["late"].data = ["S"] * 4 + [0]
    assert MultiAgentEpisode.from_state(state).env_t_to_agent_t["late"].data == ["S", 0]


def test_a_state_whose_parts_contradict_each_other_is_refused() -> None:
    state = sparse().get_state()
    state["env_t_to_agent_t"]["a"].data[1] = 7
    with pytest.raises(BadEpisode, match=r"agent 'a' has observations at its timesteps \[0, 7, 1, 2\] by its timeline"):
        MultiAgentEpisode.from_state(state)
    state["env_t_to_agent_t"]["a"].data = [0, "S", "S", "S", 1, 2]
    with pytest.raises(BadEpisode, match=r"agent 'a' has a timeline of 0 \+ 6 timesteps, 0 \+ 5 wanted"):
        MultiAgentEpisode.from_state(state)
    with pytest.raises(BadEpisode, match="not the state of a multi-agent episode"):
        MultiAgentEpisode.from_state({"id_": "x"})


def test_a_table_shows_who_saw_something_when(capsys: pytest.CaptureFixture[str]) -> None:
    sparse(len_lookback_buffer=1).print()
    assert capsys.readouterr().out == "ts  -1 0  1  2  3\na   x        x  x\nb   x  x  x  x\n"


def test_the_text_of_an_episode_says_what_it_is() -> None:
    assert repr(sparse()) == "MultiAgentEpisode(e: 4 steps from 0, going on, returns {a: 5, b: 6})"


def test_temporary_timestep_data_names_custom_data() -> None:
    with pytest.raises(UsageError, match="custom_data"):
        sparse().add_temporary_timestep_data("k", 1)
