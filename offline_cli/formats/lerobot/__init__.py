"""LeRobot's datasets, layouts v3.0, v2.1 and v2.0: a folder with `meta/info.json`, and Parquet files of frames.

* `dataset`: where its files are, `meta/info.json`, the tasks, and what is recorded of each episode, of all layouts;
* `reader`: what becomes of each feature, and frames as rows with RLlib's column names, which `formats/rllib/columns.py` reads;
* `sink`: a dataset of layout v3.0.
"""
