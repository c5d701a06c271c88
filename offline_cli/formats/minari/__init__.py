"""Minari's datasets: read in all three of its storages (`reader.py`), and written (`sink.py`)."""
