"""A connector piece outside of offline_cli."""

from __future__ import annotations

from typing import Any, ClassVar

from offline_cli import ConnectorV2
from offline_cli.connectors.batch_items import Batch, Episodes


class HalveRewards(ConnectorV2):
    """Rewards (T,) in half of their units."""

    per_episode: ClassVar[bool] = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        for episode in self.single_agent_episode_iterator(episodes, False):
            episode.set_rewards(new_data=episode.get_rewards() / 2)
        return batch
