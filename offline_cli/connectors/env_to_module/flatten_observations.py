"""FlattenObservations by the import path that RLlib has for it; refuses to be another class than that in `common`."""

from offline_cli.connectors.common.flatten_observations import FlattenObservations

__all__ = ["FlattenObservations"]
