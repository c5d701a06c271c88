"""`write_dataset`: write a dataset in one call, from batches or single episodes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, Final

from offline_cli.checked_keywords import checked
from offline_cli.choices import MAX_BYTES_PER_FILE, ActionScale, Compression, Count, RowFormat
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import EnvironmentRecord, Manifest
from offline_cli.datasets.writer import UNKNOWN, DatasetWriter, agents_of
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.multi_agent_episode import MultiAgentEpisode
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadConfig, BadEpisode, NoData, UsageError
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.spaces import Space, only_discrete, same_space
from offline_cli.storage.locations import Location, open_location

_log = logging.getLogger(__name__)
UNKNOWN_SCALE: Final = (
    'note: the scale of the actions is unknown, and train will ask for it: give action_scale="env" or "normalized", or'
    " like=DATASET to take it from there"
)
KINDS: Final = (EpisodeBatch, SingleAgentEpisode, MultiAgentEpisode)
Episodes = (
    EpisodeBatch | SingleAgentEpisode | MultiAgentEpisode | Iterable[EpisodeBatch | SingleAgentEpisode | MultiAgentEpisode]
)
JOINED: Final = 1 << 16  # steps per batch of joined single episodes


@dataclass(frozen=True, slots=True)
class WrittenDataset:
    """A committed dataset."""

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
    """Write `episodes`, batches or single ones, as a dataset in the folder `url`; on failure, existing data stays.

    `like`: a dataset that provides environment, action scale, spaces and meanings unless they are given; the default is
    `episodes` if it is a Dataset. Spaces that are not given come from the first episodes, and all episodes must agree with
    them. Multi-agent episodes are written as one episode per agent. `meanings`: of columns, in the form of
    schemas/meanings.v1.json: `{"obs": [{"name": "x"}, {"name": "y"}]}`. If the scale of Box actions stays unknown, logs a note.

    Raises BadConfig for unknown spaces or invalid meanings; NoData without episodes, OutputExists, UsageError; BadEpisode for
    a duplicate id and for episodes that do not fit; StorageError; and whatever `episodes` raises.
    """
    place, batches = open_location(url, storage_options), joined_batches(episodes)
    first = next((batch for batch in batches if len(batch)), None)
    if first is None:
        raise NoData("no episodes to write", where=place.url, fix="check how the episodes are selected")
    like = episodes if like is None and isinstance(episodes, Dataset) else like
    known = None if like is None else like.manifest
    given = {"observation_space": observation_space, "action_space": action_space}
    if known is not None:
        given = {name: space or getattr(known, name) for name, space in given.items()}
    spaces = {name: space or getattr(first, name) for name, space in given.items()}
    if None in spaces.values():
        fix = "pass gymnasium spaces: write_dataset(..., observation_space=..., action_space=...)"
        raise BadConfig("the episodes have no spaces", where=place.url, fix=fix)
    scale = "env" if only_discrete(spaces["action_space"]) else UNKNOWN
    inherited = (None, scale, NO_MEANINGS) if known is None else (known.environment, known.action_scale, known.meanings)
    if (action_scale or inherited[1]) == UNKNOWN:
        _log.warning(UNKNOWN_SCALE)
    writer = DatasetWriter(
        place,
        format=format,
        observation_space=spaces["observation_space"],
        action_space=spaces["action_space"],
        action_scale=action_scale or inherited[1],
        environment=inherited[0] if env is None else EnvironmentRecord(env, env_kwargs or {}, tuple(wrappers or ())),
        meanings=inherited[2] if meanings is None else Meanings.of(meanings, "meanings"),
        reference=None if known is None else known.reference,
        compression=compression,
        max_rows_per_file=max_rows_per_file,
        max_bytes_per_file=max_bytes_per_file,
        overwrite=overwrite,
    )
    with writer:
        for batch in chain([first], batches):
            for name in (name for name, space in given.items() if space is None):
                before, own = getattr(first, name), getattr(batch, name)
                if own is not None and own is not before and not same_space(own, before):
                    fix = f"use one {name} for all episodes, or pass {name}=... if they mean the same"
                    what = f"{name} is {own}, but {before} in earlier episodes"
                    raise BadEpisode(what, where=f"batch from episode {batch.ids[0]}", fix=fix)
            writer.write(batch)
        manifest = writer.commit()
    counts = manifest.counts
    return WrittenDataset(place.url, counts.episodes, counts.steps, len(manifest.shards), manifest)


def joined_batches(episodes: Episodes) -> Iterator[EpisodeBatch]:
    """Yield batches unchanged, and join consecutive single episodes into batches. `episodes` may be a single one.

    Raises BadEpisode for consecutive episodes that cannot be joined, UsageError for other objects.
    """
    is_table = type(episodes).__module__.split(".")[0] in ("polars", "pandas", "pyarrow")  # iterable, but over columns
    if is_table or isinstance(episodes, str | bytes | os.PathLike) or not isinstance(episodes, (*KINDS, Iterable)):
        raise _no_episodes(episodes)
    items: Iterable[Any] = [episodes] if isinstance(episodes, KINDS) else episodes
    for is_batch, neighbours in groupby(items, lambda one: isinstance(one, EpisodeBatch)):
        if is_batch:
            yield from neighbours
            continue
        single = (part for one in neighbours for part in _agents(one))
        chosen, steps = list[SingleAgentEpisode](), 0
        for part in single:
            chosen.append(part)
            steps += len(part) + 1
            if steps >= JOINED:
                yield EpisodeBatch.from_episodes(chosen)
                chosen, steps = [], 0
        if chosen:
            yield EpisodeBatch.from_episodes(chosen)


def _agents(one: Any) -> list[SingleAgentEpisode]:
    if not isinstance(one, SingleAgentEpisode | MultiAgentEpisode):
        raise _no_episodes(one)
    return agents_of(one)


def _no_episodes(given: object) -> UsageError:
    what = f"expected an episode, not a {type(given).__name__}"
    fix = "pass EpisodeBatches, SingleAgentEpisodes or MultiAgentEpisodes; convert a table with `offline-cli convert` first"
    return UsageError(what, where="episodes", fix=fix)
