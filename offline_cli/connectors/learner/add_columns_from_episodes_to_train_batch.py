"""AddColumnsFromEpisodesToTrainBatch by the import path that RLlib has for it; refuses to be another class."""

from offline_cli.connectors.learner.add_columns_from_episodes_to_batch import AddColumnsFromEpisodesToTrainBatch

__all__ = ["AddColumnsFromEpisodesToTrainBatch"]
