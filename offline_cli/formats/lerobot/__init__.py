"""LeRobot datasets: read (`reader.py`) and written (`sink.py`)."""
