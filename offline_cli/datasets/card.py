"""README.md of a dataset (its card): Hugging Face's header, a summary, and how to open it.

It is written with each manifest. A README.md without `MARK` is the user's and is not replaced.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.ownership import CARD, is_link, is_regular
from offline_cli.spaces import describe
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file, write_whole

MARK: Final = "<!-- written by offline-cli with each commit; without this line it stays as it is -->"
SIZES: Final = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)
"""Row counts, and Hugging Face's size categories up to them."""


def write_card(folder: Location, manifest: Manifest) -> None:
    """Write the card of dataset `folder`, unless the user has a README.md there. Raises StorageError."""
    place = folder.join(CARD)
    there = whole_file(place) if is_regular(place) else None
    if is_link(place) or (there is not None and MARK.encode() not in there):
        return
    write_whole(place, _card(manifest).encode(), folder=folder)


def _card(manifest: Manifest) -> str:
    counts, environment = manifest.counts, manifest.environment
    name = environment.id if environment is not None else None
    rows = sum(shard.rows for shard in manifest.shards)
    a_row = "an episode, packed in `item`" if manifest.format == "episodes" else "a step"
    spread = manifest.statistics["return"]
    facts = [
        ("environment", name or "not known"),
        ("observations", describe(manifest.observation_space)),
        ("actions", f"{describe(manifest.action_space)}, scale: {manifest.action_scale}"),
        ("episodes", f"{counts.episodes:,} ({counts.terminated:,} terminated, {counts.truncated:,} truncated)"),
        ("steps", f"{counts.steps:,}"),
        ("return", f"mean {_figure(spread['mean'])}, from {_figure(spread['min'])} to {_figure(spread['max'])}"),
        ("complete", "yes" if manifest.complete else "no: its writer was stopped, or it was repaired"),
    ]
    lost = [("episodes lost on the way here", f"{manifest.episodes_lost:,}")] if manifest.episodes_lost else []
    table = "\n".join(f"| {_plain(key)} | {_plain(value)} |" for key, value in [*facts, *lost])
    return f"""---
pretty_name: {orjson.dumps(f"Episodes of {name}" if name else "Recorded episodes").decode()}
task_categories:
- reinforcement-learning
tags:
- reinforcement-learning
- offline-rl
- offline-cli
size_categories:
- {next((label for most, label in SIZES if rows < 10**most), "10M<n<100M")}
configs:
- config_name: default
  data_files: data/*.parquet
---
{MARK}

# {_plain(f"Episodes of {name}" if name else "Recorded episodes")}

Episodes for offline reinforcement learning, as Parquet: a row is {a_row}. `manifest.json` says all that is known of them.

| | |
| --- | --- |
{table}

## How to open it

```python
import polars
frame = polars.read_parquet("data/*.parquet")

import offline_cli  # pip install offline-cli
dataset = offline_cli.open_dataset(".")
episode = dataset[0]  # with RLlib's API of single-agent episodes
```

RLlib reads `data/` as it is:

```python
config.offline_data({_rllib(manifest)})
```
"""


def _rllib(manifest: Manifest) -> str:
    return 'input_=["data"], input_read_episodes=True' if manifest.format == "episodes" else 'input_=["data"]'


def _figure(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float) else str(value)


def _plain(text: str) -> str:
    """Escape Markdown table and HTML characters."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
