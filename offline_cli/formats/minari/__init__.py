"""Minari's datasets: read in all three of its storages (`reader.py`, `arrow_storage.py`), and written (`sink.py`)."""
