"""HDF5 files: opened safely (`safe.py`), written whole (`writing.py`), and a module for each layout; Minari's is a package."""
