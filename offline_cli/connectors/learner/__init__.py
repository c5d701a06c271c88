"""Pieces of learner pipelines; the names are those of `offline_cli.connectors`."""
