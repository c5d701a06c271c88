"""D4RL's HDF5 layout: read (`reader.py`) and written (`sink.py`)."""
