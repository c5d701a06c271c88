"""LeRobot's datasets, layouts v3.0 and v2.1: a folder with `meta/info.json`, and Parquet files of frames.

* `paths`: where the files of a dataset are: templates of paths, filled by a parser of our own, and only files of the folder;
* `metadata`: `meta/info.json`, the tasks, and what is recorded of each episode, of both layouts;
* `features`: what becomes of each feature: observation, action, extra output, or left out and named;
* `source`: all of these as a `Source`. Frames become rows with RLlib's column names, which `rllib_columns` reads.
"""

from __future__ import annotations

from offline_cli.formats.lerobot.source import open_lerobot

__all__ = ["open_lerobot"]
