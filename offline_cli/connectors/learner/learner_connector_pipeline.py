"""LearnerConnectorPipeline by the import path that RLlib has for it; refuses to be another class."""

from offline_cli.connectors.learner.default_pipeline import LearnerConnectorPipeline

__all__ = ["LearnerConnectorPipeline"]
