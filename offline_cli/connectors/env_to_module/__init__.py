"""Pieces between an environment's observations and a module's inputs; imports them when asked for."""

from offline_cli.connectors import give_paths, lookup_in

give_paths(__name__)
__getattr__ = lookup_in(__name__)
