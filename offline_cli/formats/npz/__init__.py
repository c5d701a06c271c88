"""NumPy archives: opening them (`archive.py`), flat arrays read and written (`flat.py`), OGBench's trajectories."""
