"""NumPy archives: flat arrays as a table (`flat.py`, `columns.py`) and back (`sink.py`), and OGBench's trajectories."""
