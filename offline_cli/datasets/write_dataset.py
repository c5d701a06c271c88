"""A dataset written in one call, from batches or single episodes: `write_dataset`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from offline_cli.checked_keywords import checked
from offline_cli.choices import MAX_BYTES_PER_FILE, ActionScale, Compression, Count, RowFormat
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Environment, Manifest
from offline_cli.datasets.shards import Episodes, joined_batches
from offline_cli.datasets.writer import UNKNOWN, DatasetWriter
from offline_cli.errors import BadConfig, BadEpisode, NoData
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.spaces import Space, only_discrete, same_space
from offline_cli.storage.locations import Location, open_location

__all__ = ["WrittenDataset", "write_dataset"]


@dataclass(frozen=True, slots=True)
class WrittenDataset:
    """A dataset that has been committed."""

    out: str  # URL of its folder
    episodes: int
    steps: int
    shards: int
    manifest: Manifest = field(repr=False)


@checked
def write_dataset(
    episodes: Episodes,
    url: str | os.PathLike[str] | Location,
    *,
    env: str | None = None,
    action_scale: ActionScale | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_rows_per_file: Count | None = None,
    max_bytes_per_file: Count = MAX_BYTES_PER_FILE,
    compression: Compression = "zstd",
    overwrite: bool = False,
    format: RowFormat = "episodes",
    observation_space: Space | None = None,
    action_space: Space | None = None,
    meanings: Mapping[str, Any] | None = None,
    like: Dataset | None = None,
) -> WrittenDataset:
    """Write `episodes`, batches or single ones, as a dataset in the folder `url`; all of them, or what was there stays.

    `like`: a dataset whose environment, action scale, spaces and meanings these episodes have, unless others are given; where
    `episodes` is a Dataset, it is that. Spaces that are not given are those that the first episodes say, and then all have to
    say the same. Of an episode of several agents each agent's is written. `meanings`: of columns, in the form of
    schemas/meanings.v1.json: `{"obs": [{"name": "x"}, {"name": "y"}]}`.

    Raises BadConfig where the spaces are not known, and for meanings of another form; NoData for no episodes, OutputExists,
    UsageError; BadEpisode for an id that comes twice and for episodes that do not fit; StorageError; what `episodes` raises.
    """
    options = dict(locals())
    place, batches = open_location(url, options["storage_options"]), joined_batches(episodes)
    first = next((batch for batch in batches if len(batch)), None)
    if first is None:
        raise NoData("no episodes to write", where=place.url, fix="check what the episodes are chosen by")
    like = episodes if like is None and isinstance(episodes, Dataset) else like
    known = None if like is None else like.manifest
    if known is not None:
        observation_space = observation_space or known.observation_space
        action_space = action_space or known.action_space
    observations, actions = observation_space or first.observation_space, action_space or first.action_space
    if observations is None or actions is None:
        fix = "write_dataset(..., observation_space=..., action_space=...), of gymnasium.spaces"
        raise BadConfig("the episodes do not say their spaces", where=place.url, fix=fix)
    env = options["env"]
    environment = Environment(env) if env is not None else None if known is None else known.environment
    scale = options["action_scale"] or (None if known is None else known.action_scale)
    own = NO_MEANINGS if known is None else known.meanings
    writer = DatasetWriter(
        place,
        format=options["format"],
        observation_space=observations,
        action_space=actions,
        action_scale=scale or ("env" if only_discrete(actions) else UNKNOWN),
        environment=environment,
        meanings=own if meanings is None else Meanings.of(meanings, "meanings"),
        compression=options["compression"],
        max_rows_per_file=options["max_rows_per_file"],
        max_bytes_per_file=options["max_bytes_per_file"],
        overwrite=options["overwrite"],
    )
    with writer:
        for batch in chain([first], batches):
            for name, given in (("observation_space", observation_space), ("action_space", action_space)):
                said, own = getattr(first, name), getattr(batch, name)
                if given is None and own is not None and own is not said and not same_space(own, said):
                    fix = f"one {name} for all; or give it, if these mean the same"
                    raise BadEpisode(f"{name} {own}, and {said} before", where=f"batch from episode {batch.ids[0]}", fix=fix)
            writer.write(batch)
        manifest = writer.commit()
    counts = manifest.counts
    return WrittenDataset(place.url, counts.episodes, counts.steps, len(manifest.shards), manifest)
