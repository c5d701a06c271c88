"""MeanStdFilter by the import path that RLlib has for it; refuses to be another class than that in `common`."""

from offline_cli.connectors.common.mean_std_filter import MeanStdFilter

__all__ = ["MeanStdFilter"]
