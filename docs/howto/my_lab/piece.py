"""Rewards times a factor."""

from offline_cli import ConnectorV2


class ScaleRewards(ConnectorV2):
    per_episode = True  # episodes may be handed to it in any groups

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def __call__(self, *, batch, episodes, **_):
        for episode in self.single_agent_episode_iterator(episodes, False):
            episode.set_rewards(new_data=episode.get_rewards() * self.factor)
        return batch
