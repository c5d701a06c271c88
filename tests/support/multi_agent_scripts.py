"""The shortest ways to differences that random sequences seldom meet; refuses to judge what comes of them.

Each script plays an episode of the class given and returns what the two implementations are to be compared by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["SCRIPTS"]


def begun(cls: Any, *agents: str) -> Any:
    episode = cls(id_="e", agent_to_module_mapping_fn=lambda agent, episode: "m")
    episode.add_env_reset(observations=dict.fromkeys(agents, 0))
    return episode


def step(episode: Any, *agents: str, sees: str = "", **more: Any) -> None:
    """The agents act and see something; those in `sees` see something without acting now, those in `hangs` only act."""
    acts = [*agents, *more.pop("hangs", "")]
    rewards = {**dict.fromkeys(agents, 1.0), **more.pop("rewards", {})}
    episode.add_env_step(dict.fromkeys([*agents, *sees], 1), dict.fromkeys(acts, 2), rewards, **more)


def lookback_too_long(cls: Any) -> Any:
    episode = begun(cls, "a", "b")
    step(episode, "b", hangs="a")
    step(episode, "b")
    step(episode, "b", sees="a")
    step(episode, "b", hangs="a")
    return len(episode.cut(3).env_t_to_agent_t["b"].data)


def newcomer_ended(cls: Any) -> Any:
    episode = begun(cls, "a")
    step(episode, "a", sees="b", terminateds={"a": True})
    return bool(episode.is_done)


def never_came(cls: Any) -> Any:
    episode = begun(cls, "a")
    step(episode, "a", rewards={"late": 1.0})
    step(episode, "a", rewards={"late": 2.0}, terminateds={"a": True})
    return episode.get_return(include_hanging_rewards=True)


def tells_early(cls: Any) -> Any:
    episode = begun(cls, "a", "b")
    step(episode, "a", "b", extra_model_outputs={"a": {"logp": 1.0}})
    step(episode, "b", hangs="a", extra_model_outputs={"a": {"other": 1.0}})
    return len(episode)


def concat_of_arrays(cls: Any) -> Any:
    episode = begun(cls, "a")
    step(episode, "a")
    chunk = episode.cut()
    episode.to_numpy()
    episode.concat_episode(chunk)
    return episode.get_actions()["a"]


def concat_loses_first_rewards(cls: Any) -> Any:
    episode = begun(cls, "a")
    chunk = episode.cut()
    step(chunk, "a", rewards={"late": 2.0})
    episode.concat_episode(chunk)
    return episode.get_return(include_hanging_rewards=True)


def concat_loses_a_flag(cls: Any) -> Any:
    episode = begun(cls, "a")
    chunk = episode.cut()
    step(chunk, "a", terminateds={"__all__": True}, truncateds={"__all__": True})
    episode.concat_episode(chunk)
    return bool(episode.is_truncated)


def concat_loses_skips(cls: Any) -> Any:
    episode = begun(cls, "a", "b")
    step(episode, "a", "b", terminateds={"b": True})
    chunk = episode.cut()
    step(chunk, "a")
    episode.concat_episode(chunk)
    return episode.get_observations(-1)


def concat_keeps_what_was_answered(cls: Any) -> Any:
    episode = begun(cls, "a", "b")
    step(episode, "b", hangs="a")
    chunk = episode.cut(1)
    step(chunk, "b", sees="a")
    episode.concat_episode(chunk)
    return dict(episode._hanging_actions_end)


def wraps_around(cls: Any) -> Any:
    episode = begun(cls, "a")
    step(episode, "a")
    return episode.to_numpy().get_observations(-1, env_steps=False, neg_index_as_lookback=True)


def hanging_before_lookback(cls: Any) -> Any:
    episode = begun(cls, "a", "b")
    step(episode, "b", hangs="a")
    return episode.get_actions(-1, "a", env_steps=False, neg_index_as_lookback=True)


def hanging_in_arrays(cls: Any) -> Any:
    episode = begun(cls, "a", "b")
    acts = {"a": np.ones(2), "b": np.ones(2)}
    episode.add_env_step({"a": 1, "b": 1}, acts, {"a": 0.0, "b": 0.0})
    episode.to_numpy()
    episode.add_env_step({"b": 2}, acts, {"b": 0.0})
    return np.shape(episode.get_actions(-1)["a"])


def filled_outputs(cls: Any) -> Any:
    episode = begun(cls, "a")
    step(episode, "a", extra_model_outputs={"a": {"logp": 1.0}})
    return episode.get_extra_model_outputs("logp", slice(-3, None), fill=0.0)


def filled_range(cls: Any) -> Any:
    episode = begun(cls, "a")
    step(episode, "a")
    return len(episode.get_actions(slice(-2, 4), fill=0, neg_index_as_lookback=True)["a"])


def range_of_nothing(cls: Any) -> Any:
    return begun(cls, "a").get_rewards(slice(0, -2), env_steps=False)


SCRIPTS: dict[str, Callable[[Any], Any]] = {
    "lookback too long": lookback_too_long,
    "newcomer ended": newcomer_ended,
    "never came": never_came,
    "tells early": tells_early,
    "concat of arrays": concat_of_arrays,
    "concat loses first rewards": concat_loses_first_rewards,
    "concat loses a flag": concat_loses_a_flag,
    "concat loses skips": concat_loses_skips,
    "concat keeps what was answered": concat_keeps_what_was_answered,
    "wraps around": wraps_around,
    "hanging before lookback": hanging_before_lookback,
    "hanging in arrays": hanging_in_arrays,
    "filled outputs": filled_outputs,
    "filled range": filled_range,
    "range of nothing": range_of_nothing,
}
