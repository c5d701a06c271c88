"""What `convert --append` adds to: the dataset that is there, and its episodes as reading needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from offline_cli.converting.fitting import as_space, extra_dtypes
from offline_cli.converting.reading import EpisodeStream
from offline_cli.converting.reset_rows import ResetKind, without_reset
from offline_cli.converting.sink import OURS
from offline_cli.converting.whole_episodes import AddedTo
from offline_cli.datasets.appending import Base, dataset_to_append_to
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.fit import conform
from offline_cli.episodes.known_episodes import EarlierEpisodes
from offline_cli.errors import UsageError
from offline_cli.formats.opening import info_of
from offline_cli.storage.locations import Location

__all__ = ["added_to", "base_of", "environment_of_all"]


def base_of(target: Location, options: Mapping[str, Any]) -> Base | None:
    """The dataset at `target`, if `append` is asked for.

    Raises UsageError for options that exclude it, and as `dataset_to_append_to` does.
    """
    if not options["append"]:
        return None
    if options["to"] not in (None, *OURS):
        fix = "leave out --append, or --to"
        raise UsageError("--append adds to datasets of ours alone", where=f"--to {options['to']}", fix=fix)
    if options["overwrite"]:
        fix = "--append to add to the dataset, or --overwrite to replace it"
        raise UsageError("--append and --overwrite are mutually exclusive", where=target.url, fix=fix)
    return dataset_to_append_to(target, resume=options["resume"], force_unlock=options["force_unlock"])


def added_to(target: Location, base: Base, *, drop_reset_rows: bool) -> AddedTo:
    """The dataset at `target` as reading needs it. Raises BadData, StorageError.

    `drop_reset_rows`: it may have been written without the resets that its sources have.
    """
    manifest = base.manifest
    dataset = Dataset(target, manifest, base.shards)
    with dataset.batches() as batches:
        first = next(iter(batches), None)
    observation, action = manifest.observation_space, manifest.action_space
    dtypes = {} if first is None else extra_dtypes(first)

    def stored(batch: EpisodeBatch) -> EpisodeBatch:
        if drop_reset_rows:
            batch = EpisodeBatch.concat([batch, *(without_reset(batch, kind, np.ones(1, np.bool_)) for kind in ResetKind)])
        if observation is None or action is None:
            return batch
        shaped = replace(batch, obs=as_space(batch.obs, observation), actions=as_space(batch.actions, action))
        return conform(shaped, observation, action, dtypes)

    ids = tuple(name for names in base.ids(target) for name in names)
    info = replace(info_of(manifest, target.url), said_by="the dataset")
    return AddedTo(info, EarlierEpisodes(target.url, ids, dataset.batches, stored), first)


def environment_of_all(stream: EpisodeStream, base: Base | None, env: str | None) -> Environment | None:
    """That of all episodes; with `env`, those that were there keep theirs: it says where the new ones are from."""
    said = Environment.of(stream.environment)
    if base is None or env is None:
        return said
    known = base.manifest.environment
    return known if known is not None and said is not None and known.id == said.id else None
