"""NumPy archives (`.npz`): flat arrays as a table (`flat.py`, `columns.py`), and OGBench's trajectories (`ogbench.py`)."""
