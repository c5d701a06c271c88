"""Pieces of module-to-env pipelines; the names are those of `offline_cli.connectors`."""
