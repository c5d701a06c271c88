"""README.md of a dataset (its card): Hugging Face's header, a summary, and how to open it.

It is written with each manifest. A README.md without `MARK` is the user's and is not replaced.
"""

from __future__ import annotations

import math
import re
import textwrap
from typing import Any, Final

import orjson
import pyarrow as pa

from offline_cli.datasets.file_names import CARD
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.ownership import is_link, is_regular
from offline_cli.parquet.reading import opened
from offline_cli.spaces import describe, leaf_spaces
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file, write_whole

MARK: Final = "<!-- written by offline-cli with each commit; without this line it stays as it is -->"
HEADER: Final = re.compile(r"\A---[ \t]*\r?\n.*?^---[ \t]*$", re.DOTALL | re.MULTILINE)
MOST_MEANINGS: Final = 100
TYPES: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}  # of Arrow, as Hugging Face calls them
SIZES: Final = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)
"""Row counts, and Hugging Face's size categories up to them."""
COLUMNS: Final = {
    "episodes": {
        "item": "the packed episode (msgpack): RLlib's state of a SingleAgentEpisode",
        "eps_id": "id of the episode",
        "length": "number of actions",
        "return": "sum of rewards",
        "terminated, truncated": "how the episode ended",
    },
    "columns": {
        "eps_id, agent_id, module_id": "ids of the episode, its agent and its module",
        "t": "step of the episode, from 0",
        "obs": "observation acted on",
        "actions, rewards": "the action, and its reward",
        "new_obs": "next observation",
        "terminateds, truncateds": "true at the last step, by how the episode ended",
        "source_id": "the id that the episode had in its table",
        "final_obs_assumed": "true at a last step whose next observation was not recorded: `new_obs` repeats `obs`",
        "infos, reset_infos": "info of the step, and of the reset (at t = 0), as JSON text",
    },
}
"""Columns by row format; in `columns` extra model outputs come with their own names."""


def body_of(card: str) -> str:
    """The text of a card without its header of YAML."""
    return HEADER.sub("", card, count=1)


def write_card(folder: Location, manifest: Manifest) -> None:
    """Write the card of dataset `folder`, unless the user has a README.md there. Raises StorageError."""
    place = folder.join(CARD)
    there = whole_file(place) if is_regular(place) else None
    if is_link(place) or (there is not None and MARK.encode() not in there):
        return
    write_whole(place, card_of(folder, manifest).encode(), folder=folder)


def card_of(folder: Location, manifest: Manifest, *, license: str | None = None, repository: str | None = None) -> str:
    """The card of the dataset in `folder`. `license`: as Hugging Face calls it (`cc-by-4.0`). `repository`: OWNER/NAME of its
    copy on the Hub. Raises StorageError.
    """
    counts, environment = manifest.counts, manifest.environment
    name = environment.id if environment is not None else None
    title = f"Episodes of {name}" if name else (repository or "Recorded episodes").rpartition("/")[2]
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
        *([("licence", license)] if license else []),
        ("complete", "yes" if manifest.complete else "no: its writer was stopped, or it was repaired"),
    ]
    lost = [("episodes lost on the way here", f"{manifest.episodes_lost:,}")] if manifest.episodes_lost else []
    assumed = ", ".join(f"{kind} {count:,}" for kind, count in sorted(manifest.assumptions.items()))
    lost += [("assumed while it was made", assumed)] if assumed else []
    table = "\n".join(f"| {_plain(key)} | {_plain(value)} |" for key, value in [*facts, *lost, *_meanings(manifest)])
    licensed = "" if license is None else f"license: {license}\n"
    return f"""---
{licensed}pretty_name: {orjson.dumps(title).decode()}
task_categories:
- reinforcement-learning
tags:
- reinforcement-learning
- offline-rl
- offline-cli
size_categories:
- {next((label for most, label in SIZES if rows < most), "10M<n<100M")}
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*.parquet
{_features(folder, manifest)}---
{MARK}

# {_plain(title)}

Episodes for offline reinforcement learning, as Parquet: a row is {a_row}. `manifest.json` says all that is known of them.

| | |
| --- | --- |
{table}

## Columns

| column | meaning |
| --- | --- |
{_columns(manifest)}

## How to open it

```python
{_opening(manifest, repository)}
```

Each file's SHA-256 is in `manifest.json`; `offline-cli validate {_place(repository)}` compares them.
"""


def _columns(manifest: Manifest) -> str:
    """Rows of Markdown. Most readers flatten values with several axes, so their shapes are named."""
    rows = dict(COLUMNS[manifest.format])
    known = {"obs": manifest.observation_space, "actions": manifest.action_space} if manifest.format == "columns" else {}
    leaves = [each for name, space in known.items() if space is not None for each in leaf_spaces(space, name).items()]
    for path, leaf in leaves:
        if len(shape := leaf.shape or ()) > 1:
            text = f"shape {shape}, read as flat lists of {math.prod(shape)}: `.reshape{(-1, *shape)}`"
            rows[path] = f"{rows[path]}, {text}" if path in rows else text
    return "\n".join(f"| {_plain(name)} | {_plain(text)} |" for name, text in rows.items())


def _meanings(manifest: Manifest) -> list[tuple[str, str]]:
    """What is known of the numbers: `obs[0]`, and its name, unit and choices."""
    found = []
    for path, elements in manifest.meanings.by_path.items():
        for number, one in enumerate(elements):
            choices = ", ".join(f"{value} {text}" for value, text in enumerate(one.categories or ()))
            words = [text for text in (one.name, one.unit and f"in {one.unit}", choices) if text]
            found += [(path if len(elements) == 1 else f"{path}[{number}]", "; ".join(words))] if words else []
    return found[:MOST_MEANINGS]


def _features(folder: Location, manifest: Manifest) -> str:
    """The types of columns for the header, where some are tensors: Hugging Face reads those as flat lists, if it is told."""
    known = [space for space in (manifest.observation_space, manifest.action_space) if space is not None]
    shapes = [leaf.shape or () for space in known for leaf in leaf_spaces(space).values()]
    if manifest.format != "columns" or not manifest.shards or max(map(len, shapes)) < 2:
        return ""
    with opened(folder.join(manifest.shards[0].path)) as file:
        schema = file.schema_arrow
    features = [{"name": field.name, **_feature(field.type)} for field in schema]
    return f"dataset_info: {orjson.dumps({'features': features}).decode()}\n"


def _feature(kind: Any) -> dict[str, Any]:
    """As `datasets.Features` writes a pa.DataType in YAML."""
    if pa.types.is_struct(kind):
        return {"struct": [{"name": field.name, **_feature(field.type)} for field in kind]}
    kind = getattr(kind, "storage_type", kind)
    if not pa.types.is_list(kind) and not pa.types.is_fixed_size_list(kind):
        return {"dtype": TYPES.get(str(kind), str(kind))}
    item = _feature(kind.value_type)
    return {"list": item.get("dtype", item)} | ({"length": kind.list_size} if pa.types.is_fixed_size_list(kind) else {})


def _place(repository: str | None) -> str:
    return "." if repository is None else f"hf://datasets/{repository}"


def _opening(manifest: Manifest, repository: str | None) -> str:
    """Lines of Python that open the dataset: beside the card, or from the Hub."""
    place = _place(repository)
    data = "data" if repository is None else f"{place}/data"
    hub, path = (repository, "") if repository else ("FOLDER", "  # write the folder's full path")
    packed = "  # steps are packed in item: see above" if manifest.format == "episodes" else ""
    rllib = f'input_=["{"data" if repository is None else "NAME/data"}"]'
    episodes = "input_read_episodes=True, input_read_batch_size=2, " if manifest.format == "episodes" else ""
    download = "" if repository is None else f"; before: hf download {repository} --repo-type dataset --local-dir NAME"
    return textwrap.dedent(f"""\
        import offline_cli  # pip install 'offline-cli{"" if repository is None else "[hub]"}'
        dataset = offline_cli.open_dataset("{place}")
        episode = dataset[0]  # with RLlib's API of single-agent episodes

        import polars
        frame = polars.read_parquet("{data}/*.parquet"){packed}

        import pandas
        frame = pandas.read_parquet("{data}")

        import datasets
        rows = datasets.load_dataset("{hub}", split="train"){path}

        import ray  # for RLlib, with pip install msgpack-numpy{download}
        ray.init(num_cpus=4)  # logical cores; with fewer RLlib may wait forever
        config.offline_data(
            {rllib},
            {episodes}map_batches_kwargs={{"concurrency": 1, "num_cpus": 1}},
            materialize_mapped_data=True,
            dataset_num_iters_per_learner=50,  # updates in each train()
        )""")


def _figure(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float) else str(value)


def _plain(text: str) -> str:
    """Escape Markdown table and HTML characters."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
