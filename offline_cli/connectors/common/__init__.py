"""Pieces of both env-to-module and learner pipelines; the names are those of `offline_cli.connectors`."""
