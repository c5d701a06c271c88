"""Pieces of learner pipelines, one file per piece."""
