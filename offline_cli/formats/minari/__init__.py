"""Minari datasets: read from HDF5, Arrow and Parquet (`reader.py`), and written as HDF5 (`sink.py`)."""
