"""LeRobot's datasets, layouts v3.0, v2.1 and v2.0: a folder with `meta/info.json`, and Parquet files of frames.

* `dataset`: where its files are, `meta/info.json`, the tasks, and what is recorded of each episode, of all layouts;
* `features`: what becomes of each feature: observation, action, extra output, or left out and named;
* `source`: all of these as a `Source`. Frames become rows with RLlib's column names, which `rllib_columns` reads;
* `sink`, `writing`: a dataset of layout v3.0.
"""

from __future__ import annotations

from offline_cli.formats.lerobot.source import open_lerobot

__all__ = ["open_lerobot"]
