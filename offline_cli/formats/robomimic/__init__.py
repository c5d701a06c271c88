"""robomimic's HDF5 layout: read (`reader.py`) and written (`sink.py`)."""
