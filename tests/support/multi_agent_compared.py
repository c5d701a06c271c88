"""What two implementations of multi-agent episodes are compared by; refuses to know which is which."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Outcome", "difference", "nonzero", "outcome", "whole"]

Outcome = tuple[str, Any]


def outcome(call: Callable[[], Any]) -> Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "returns", call()
    except Exception as err:  # noqa: BLE001  whether there is an error is what is compared
        return "raises", err


def difference(ours: Any, theirs: Any, path: str = "") -> str:
    """What differs in structure, dtype or value; empty when nothing does."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return next(filter(None, (difference(ours[key], theirs[key], f"{path}.{key}") for key in ours)), "")
    if isinstance(ours, (list, tuple)) and type(ours) is type(theirs) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next(filter(None, (difference(a, b, f"{path}[{i}]") for i, (a, b) in pairs)), "")
    if isinstance(ours, (dict, list, tuple)) or type(ours) is not type(theirs):
        return f"{path}: {ours!r} against {theirs!r}"
    if isinstance(ours, np.ndarray):
        same = ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    else:
        same = ours == theirs
    return "" if same else f"{path}: {ours!r} against {theirs!r}"


def whole(episode: Any) -> dict[str, Any]:
    """Everything an episode holds, clocks, spaces and made-up ids left out."""
    return {
        "t": [episode.env_t_started, episode.env_t, len(episode), episode.env_steps(), episode.agent_steps()],
        "flags": [bool(episode.is_terminated), bool(episode.is_truncated), episode.is_reset, bool(episode.is_done)],
        "timelines": {agent: plain(episode.env_t_to_agent_t[agent]) for agent in episode.agent_episodes},
        "actions": dict(episode._hanging_actions_end),
        "outputs": {agent: episode._hanging_extra_model_outputs_end.get(agent) or {} for agent in episode._hanging_actions_end},
        "rewards": nonzero(episode._hanging_rewards_end),
        "rewards before": nonzero(episode._hanging_rewards_begin),
        "agents": {agent: whole_agent(part) for agent, part in episode.agent_episodes.items()},
        "custom": dict(episode.custom_data),
        "id": episode.id_,
    }


def plain(buffer: Any) -> dict[str, Any]:
    return {"data": buffer.data, "lookback": buffer.lookback, "finalized": buffer.finalized}


def nonzero(rewards: Any) -> dict[str, float]:
    return {agent: float(reward) for agent, reward in rewards.items() if reward}


def whole_agent(part: Any) -> dict[str, Any]:
    kinds = ("observations", "actions", "rewards", "infos")
    return {
        **{kind: plain(getattr(part, kind)) for kind in kinds},
        "extra": {name: plain(buffer) for name, buffer in part.extra_model_outputs.items() if buffer.len_incl_lookback()},
        "facts": [part.t_started, part.t, bool(part.is_terminated), bool(part.is_truncated)],
        "who": [part.agent_id, part.module_id, part.multi_agent_episode_id],
    }
