"""Episodes of several agents on their way into a dataset: each agent's is written; agents of other spaces are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import DatasetWriter, MultiAgentEpisode, open_dataset, write_dataset
from offline_cli.errors import BadEpisode

CHOICE = spaces.Discrete(2)


def played(widths: dict[str, int]) -> MultiAgentEpisode:
    """Three steps of these agents, whose observations have so many numbers."""
    seen = {agent: np.zeros(width, np.float32) for agent, width in widths.items()}
    observing = {agent: spaces.Box(-1, 1, (width,)) for agent, width in widths.items()}
    episode = MultiAgentEpisode("match", observation_space=observing, action_space=dict.fromkeys(widths, CHOICE))
    episode.add_env_reset(observations=seen, infos={})
    for t in range(3):
        actions, rewards = dict.fromkeys(widths, 1), dict.fromkeys(widths, 1.0)
        episode.add_env_step(seen, actions, rewards, {}, terminateds={"__all__": t == 2}, truncateds={})
    return episode


def test_a_writer_takes_an_episode_of_several_agents_and_writes_that_of_each(tmp_path: Path) -> None:
    space = spaces.Box(-1, 1, (2,))
    with DatasetWriter(tmp_path / "D", observation_space=space, action_space=CHOICE, action_scale="env") as writer:
        writer.write(played({"left": 2, "right": 2}))
        writer.commit()
    with open_dataset(tmp_path / "D") as dataset:
        assert sorted(name for batch in dataset.batches() for name in batch.agent_ids or ()) == ["left", "right"]


@pytest.mark.parametrize("how", ["write_dataset", "writer"])
def test_agents_of_other_spaces_are_refused_with_their_names_and_what_to_do(how: str, tmp_path: Path) -> None:
    episode = played({"pawn": 2, "king": 3})
    with pytest.raises(BadEpisode) as refused:
        if how == "write_dataset":
            write_dataset(episode, tmp_path / "D")
        else:
            with DatasetWriter(tmp_path / "D", observation_space=spaces.Box(-1, 1, (2,)), action_space=CHOICE) as writer:
                writer.write(episode)
    assert "agent pawn" in refused.value.where
    assert "agent king" in refused.value.where
    assert "episode.agent_episodes[agent]" in refused.value.fix
    kings = write_dataset([episode.agent_episodes["king"]], tmp_path / "kings")  # what it says to try
    assert (kings.episodes, kings.steps) == (1, 3)
