"""Pieces of more than one pipeline, one file per piece."""
