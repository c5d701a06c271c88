"""Behaviour cloning: loader, updates, checks, checkpoints, evaluation; reads episodes, writes run folders."""
