"""EnvToModulePipeline by the import path that RLlib has for it; refuses to be another class."""

from offline_cli.connectors.env_to_module.default_pipeline import EnvToModulePipeline

__all__ = ["EnvToModulePipeline"]
