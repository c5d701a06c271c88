"""LeRobot's datasets: what a folder says of itself (`dataset.py`), frames to episodes (`reader.py`) and back (`sink.py`)."""
