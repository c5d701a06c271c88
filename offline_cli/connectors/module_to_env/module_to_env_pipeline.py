"""ModuleToEnvPipeline by the import path that RLlib has for it; refuses to be another class."""

from offline_cli.connectors.module_to_env.default_pipeline import ModuleToEnvPipeline

__all__ = ["ModuleToEnvPipeline"]
