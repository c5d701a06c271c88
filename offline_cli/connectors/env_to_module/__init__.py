"""Pieces of env-to-module pipelines; the names are those of `offline_cli.connectors`."""
