"""A multi-agent episode as text, one row per agent; refuses to show data."""

from __future__ import annotations

from offline_cli.episodes.multi_agent.episode_data import MultiAgentData
from offline_cli.episodes.multi_agent.timelines import SKIP
from offline_cli.printable_text import printable

__all__ = ["table"]


def table(episode: MultiAgentData) -> str:
    """Environment timesteps across, from the lookback buffer's first; an x where an agent got an observation."""
    names = [printable(str(agent)) for agent in episode.agent_episodes]
    width = max(map(len, ["ts", *names])) + 2
    times = [str(t) for t in range(-episode._lookback, len(episode) + 1)]
    rows = [("ts", times)]
    for agent, name in zip(episode.agent_episodes, names, strict=True):
        rows.append((name, ["" if tag == SKIP else "x" for tag in episode.env_t_to_agent_t[agent].data]))
    cell = max(map(len, times)) + 1
    return "\n".join((name.ljust(width) + "".join(mark.ljust(cell) for mark in marks)).rstrip() for name, marks in rows)
