"""d3rlpy's HDF5 layout (`ReplayBuffer.dump`): read (`reader.py`) and written (`sink.py`)."""
