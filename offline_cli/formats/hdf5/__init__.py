"""HDF5 files: safe reading (`safe.py`), writing (`writing.py`), and one module per layout. Minari is a separate package."""
