"""`diff`: what differs between two sources, whatever their formats; episodes are compared by id, whatever their order.

Each source is read once, and of every episode two 64-bit fingerprints are kept: of its steps, and of all else that it holds.
Where some differ, the first such episode is read again from both and compared value by value. Numbers are equal where `==` says
so, and NaN equals NaN; dtypes and shapes have to agree. What `columns` cannot hold is compared only where neither is in that
format. Order, row format and how a manifest came to its spaces are notes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offline_cli.checked_keywords import checked
from offline_cli.choices import SOURCE_FORMAT, TABLE_MEMORY_LIMIT, ActionScale, Count, EpisodeEnds
from offline_cli.columns import Columns
from offline_cli.converting.operations.diff_result import DiffResult
from offline_cli.converting.reading import EpisodeStream, read_opened
from offline_cli.datasets.dataset import holds_dataset
from offline_cli.environments import EnvironmentSpec, spaces_of_env
from offline_cli.episodes.batch import EpisodeBatch, Form, forms, in_words
from offline_cli.episodes.codec.pack import plain_mapping
from offline_cli.episodes.known_episodes import fingerprints
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.formats.opening import open_sources
from offline_cli.formats.source import Source
from offline_cli.formats.tables.source import TableOptions
from offline_cli.meanings import Meanings
from offline_cli.progress import OnProgress, no_progress
from offline_cli.spaces import Space, describe, same_space
from offline_cli.storage.locations import Location, expand
from offline_cli.tally import Tally
from offline_cli.trees import Tree, equal_values, flatten

__all__ = ["DiffResult", "diff"]

NAMED: Final = 10  # ids of each kind
ID, A, B = "id", "a", "b"
NOT_COMPARED: Final = "custom data but the id of the source, clocks and ids of multi-agent episodes, which columns do not hold"


@checked
def diff(
    a: str | os.PathLike[str] | Location,
    b: str | os.PathLike[str] | Location,
    *,
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    action_scale: ActionScale | None = None,
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    memory_limit: int | str = TABLE_MEMORY_LIMIT,
    workers: Count = 4,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
) -> DiffResult:
    """What differs between `a` and `b`; `check` of the result raises where anything does. Raises as `read_episodes` does."""
    options = dict(locals())
    started = time.monotonic()
    one, other = (_Side.opened(place, options, on_progress) for place in (a, b))
    everything = "columns" not in (one.format, other.format)
    one_known, other_known = one.summary(everything=everything), other.summary(everything=everything)
    compared = _joined(one_known.table, other_known.table)
    found = {name: compared.filter(which) for name, which in _WHICH.items()}
    named = {name: table.get_column(ID).head(NAMED) for name, table in found.items()}
    ids = {name: tuple(value.decode("utf-8", "surrogatepass") for value in column) for name, column in named.items()}
    facts = tuple(one_known.facts_unlike(other_known))
    first: dict[str, Any] | None = None
    if name := next(iter(ids["changed"]), None):
        first = {"episode": name, **_first_difference(one.episode(name), other.episode(name), everything=everything)}
    elif lacks := next((name for name in ("missing_in_b", "missing_in_a") if ids[name]), None):
        said = ("there", "missing") if lacks == "missing_in_b" else ("missing", "there")
        first = {"episode": ids[lacks][0], **_difference(None, None, *said)}
    elif facts:
        first = {"episode": None, **facts[0]}
    counts = {name: table.height for name, table in found.items()}
    return DiffResult(
        a=one.url,
        b=other.url,
        equal=first is None,
        missing=counts["missing_in_a"] + counts["missing_in_b"],
        missing_in_a=counts["missing_in_a"],
        missing_in_b=counts["missing_in_b"],
        changed=counts["changed"],
        first=first,
        facts=facts,
        notes=tuple(_notes(one, other, one_known, other_known, compared)),
        ids=ids,
        episodes_a=one_known.table.height,
        episodes_b=other_known.table.height,
        steps_a=one_known.steps,
        steps_b=other_known.steps,
        seconds=time.monotonic() - started,
    )


_WHICH: Final = {
    "missing_in_a": pl.col("row_a").is_null(),
    "missing_in_b": pl.col("row_b").is_null(),
    "changed": (pl.col("steps_a") != pl.col("steps_b")) | (pl.col("rest_a") != pl.col("rest_b")),
}


def _joined(one: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """A row for each id, in the order of A, then of B."""
    left, right = (table.select(ID, pl.exclude(ID).name.suffix(f"_{side}")) for table, side in ((one, A), (other, B)))
    return left.join(right, on=ID, how="full", coalesce=True).sort("row_a", "row_b", nulls_last=True)


def _notes(one: _Side, other: _Side, known: _Summary, other_known: _Summary, compared: pl.DataFrame) -> Iterator[str]:
    if one.format != other.format:
        unseen = f"; not compared: {NOT_COMPARED}" if "columns" in (one.format, other.format) else ""
        yield f"A is in the format {one.format}, B in {other.format}{unseen}"
    if not compared.drop_nulls().get_column("row_b").is_sorted():
        yield "the episodes come in another order"
    if bool(known.meanings.by_path) != bool(other_known.meanings.by_path):
        yield f"{'A' if known.meanings.by_path else 'B'} says what its columns mean, the other does not"
    if known.spaces_inferred != other_known.spaces_inferred:
        yield f"the spaces of {'A' if known.spaces_inferred else 'B'} are inferred from its data, the other's are not"


# ---- one of the two ----


@dataclass(frozen=True, slots=True)
class _Summary:
    """All that is kept of a source."""

    table: pl.DataFrame  # a row an episode, in their order: id (bytes), row, fingerprints `steps` and `rest`
    steps: int
    observation_space: Space | None
    action_space: Space | None
    spaces_inferred: bool
    action_scale: str
    environment: str
    meanings: Meanings

    def facts_unlike(self, other: _Summary) -> Iterator[dict[str, Any]]:
        """What is declared of all episodes, and differs."""
        for name in ("observation_space", "action_space"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if not same_space(mine, theirs):
                words = repr if describe(mine) == describe(theirs) else describe  # the former has bounds and dtypes
                yield _difference(None, name, words(mine), words(theirs))
        for name in ("action_scale", "environment"):
            if getattr(self, name) != getattr(other, name):
                yield _difference(None, name, getattr(self, name), getattr(other, name))
        if found := self.meanings.difference(other.meanings):
            yield _difference(None, found[0], *found[2:], [found[1]])


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two, opened; it can be read several times, one after the other."""

    url: str
    sources: Sequence[Source]
    read: Callable[[], EpisodeStream]

    @classmethod
    def opened(cls, place: str | os.PathLike[str] | Location, options: Mapping[str, Any], on_progress: OnProgress) -> _Side:
        storage, tables = options["storage_options"], TableOptions.of(options)
        places, asked, from_ = expand(place, storage), AskedEnvironment.of(options), options["from_"]
        if len(places) == 1 and places[0].is_dir() and holds_dataset(places[0]):  # format and mapping are the other one's
            tables, from_ = TableOptions(memory_limit=tables.memory_limit), SOURCE_FORMAT
        sources = open_sources(places, from_=from_, tables=tables, storage_options=storage)
        env = None if asked is None else asked.among((source.info.location, source.info.environment) for source in sources)

        def read() -> EpisodeStream:
            return read_opened(
                sources,
                env=env,
                env_spaces=None if env is None else spaces_of_env(env),
                action_scale=options["action_scale"],
                workers=options["workers"],
                memory_limit=tables.memory_limit,
                episode_limit=EpisodeLimit.within(tables.memory_limit),
                temp_dir=tables.temp_dir,
                on_progress=on_progress,
            )

        return cls(", ".join(place.url for place in places), sources, read)

    @property
    def format(self) -> str:
        return ", ".join(dict.fromkeys(source.info.format for source in self.sources))

    def summary(self, *, everything: bool) -> _Summary:
        """Of all episodes. A dataset of ours may have none."""
        info = self.sources[0].info
        if len(self.sources) == 1 and info.manifest is not None and not info.manifest.counts.episodes:
            named = _environment(info.environment)
            return _Summary(_table([], [], []), 0, *info.spaces, info.spaces_inferred, info.action_scale, named, info.meanings)
        ids, of_steps, of_rest, steps = list[bytes](), list[NDArray[np.uint64]](), list[NDArray[np.uint64]](), 0
        with self.read() as stream:
            for batch in stream:
                ids += (name.encode("utf-8", "surrogatepass") for name in batch.ids)
                of_steps.append(fingerprints(batch))
                of_rest.append(_rest(batch, everything=everything))
                steps += batch.num_steps
        return _Summary(
            _table(ids, of_steps, of_rest),
            steps,
            stream.observation_space,
            stream.action_space,
            stream.spaces_inferred,
            stream.action_scale,
            _environment(stream.environment),
            stream.meanings,
        )

    def episode(self, name: str) -> EpisodeBatch:
        """The one with an id that is there, as a batch of it alone."""
        with self.read() as stream, closing(iter(stream)) as batches:  # type: ignore[type-var]
            return next(batch.select([batch.ids.index(name)]) for batch in batches if name in batch.ids)


def _table(ids: list[bytes], steps: list[NDArray[np.uint64]], rest: list[NDArray[np.uint64]]) -> pl.DataFrame:
    none = np.zeros(0, np.uint64)
    columns = {"steps": np.concatenate([none, *steps]), "rest": np.concatenate([none, *rest])}
    return pl.DataFrame({ID: pl.Series(ids, dtype=pl.Binary), **columns}).with_row_index("row")


def _environment(known: EnvironmentSpec | None) -> str:
    kwargs = [json.dumps(dict(known.kwargs), sort_keys=True)] if known is not None and known.kwargs else []
    return "none" if known is None else " ".join([known.id, *kwargs, *known.wrappers])


# ---- what an episode holds besides its steps ----


def _rest(batch: EpisodeBatch, *, everything: bool) -> NDArray[np.uint64]:
    """(E,) numbers, equal for episodes that are equal in all that is not in their steps: structure, ids, infos, custom data."""
    known = [_of_episode(batch, everything=everything)[name] for name in OF_EPISODE]
    texts = _info_texts(batch)
    structure = repr(sorted(_forms(batch).items()))
    if batch.infos is None and all(values is None for values in known):
        return np.full(len(batch), _number(structure, (None,) * len(known), {}), np.uint64)
    each = zip(*(values or (None,) * len(batch) for values in known), strict=True)
    return np.array([_number(structure, values, texts.get(e, {})) for e, values in enumerate(each)], np.uint64)


def _number(structure: str, values: tuple[Any, ...], infos: Mapping[int, str]) -> int:
    digest = blake2b(repr((structure, values, sorted(infos.items()))).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


OF_EPISODE: Final = ("agent_id", "module_id", "multi_agent_episode_id", "custom_data", "clock")


def _of_episode(batch: EpisodeBatch, *, everything: bool) -> dict[str, Sequence[Any] | None]:
    """(E,) of what an episode has once, by name; None for one that none has."""
    custom = batch.custom_data
    if custom is not None and not everything:
        custom = tuple({k: v for k, v in data.items() if k == Columns.SOURCE_ID} for data in custom)
    clock = (
        None
        if batch.clock is None
        else [None if row[0] != row[0] and row[1] != row[1] else row for row in batch.clock.tolist()]
    )
    return {
        "agent_id": batch.agent_ids,
        "module_id": batch.module_ids,
        "multi_agent_episode_id": batch.multi_agent_ids if everything else None,
        "custom_data": None if custom is None else [_text(data) if data else None for data in custom],
        "clock": clock if everything else None,
    }


def _info_texts(batch: EpisodeBatch) -> dict[int, dict[int, str]]:
    """The infos that are not empty, as text, by episode and timestep."""
    found: dict[int, dict[int, str]] = {}
    filled = [row for row, info in enumerate(batch.infos or ()) if info]
    entries = np.searchsorted(batch.obs_starts, filled, side="right") - 1
    for row, entry, first in zip(filled, entries.tolist(), batch.obs_starts[entries].tolist(), strict=True):
        assert batch.infos is not None
        found.setdefault(entry, {})[row - first] = _text(batch.infos[row])
    return found


def _text(data: Mapping[str, Any]) -> str:
    """JSON text, equal where the values are, in whichever row format they were kept."""
    return json.dumps(plain_mapping(data, tally=Tally(), where="infos"), sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biufU":
        return value.tolist()
    return repr(value)


def _forms(batch: EpisodeBatch) -> dict[str, Form]:
    return {path: form for name, tree in _trees(batch).items() for path, form in forms(tree, name).items()}


def _trees(batch: EpisodeBatch) -> dict[str, Tree]:
    return {Columns.OBS: batch.obs, Columns.ACTIONS: batch.actions, Columns.REWARDS: batch.rewards, **batch.extra}


# ---- the first difference of two episodes ----


def _first_difference(one: EpisodeBatch, other: EpisodeBatch, *, everything: bool) -> dict[str, Any]:
    """Step (None: of the episode), column, index within the value, and both values, of two single episodes that differ."""
    found = [*_unlike_forms(one, other), *_unlike_values(one, other), *_unlike_ends(one, other), *_unlike_infos(one, other)]
    known = [_of_episode(batch, everything=everything) for batch in (one, other)]
    for name in OF_EPISODE:
        left, right = (None if (values := of[name]) is None else values[0] for of in known)
        if left != right:
            found.append(_difference(None, name, left, right))
    assert found, "episodes of other fingerprints differ"
    return min(found, key=lambda one: np.inf if one["step"] is None else one["step"])


def _difference(step: int | None, column: str | None, a: Any, b: Any, index: Sequence[int] | None = None) -> dict[str, Any]:
    return {"step": step, "column": column, "index": index, A: a, B: b}


def _unlike_forms(one: EpisodeBatch, other: EpisodeBatch) -> Iterator[dict[str, Any]]:
    mine, theirs = _forms(one), _forms(other)
    for path in {**mine, **theirs}:
        if mine.get(path) != theirs.get(path):
            yield _difference(0, path, in_words(mine.get(path)), in_words(theirs.get(path)))


def _unlike_values(one: EpisodeBatch, other: EpisodeBatch) -> Iterator[dict[str, Any]]:
    """The first of each column, among the steps that both have."""
    mine, theirs = (
        dict(pair for name, tree in _trees(batch).items() for pair in flatten(tree, name)) for batch in (one, other)
    )
    for path in mine.keys() & theirs.keys():
        left, right = mine[path], theirs[path]
        if left.shape[1:] != right.shape[1:]:
            continue
        rows = min(len(left), len(right))
        unlike = ~equal_values(left[:rows], right[:rows])
        if unlike.any():
            row, *index = place = tuple(int(i) for i in np.unravel_index(int(np.argmax(unlike)), unlike.shape))
            yield _difference(row, path, _value(left[place]), _value(right[place]), index or None)


def _value(value: Any) -> Any:
    """A number as JSON has it; NaN and infinities, which it lacks, as text."""
    plain = value.item()
    return plain if not isinstance(plain, float) or np.isfinite(plain) else str(plain)


def _unlike_ends(one: EpisodeBatch, other: EpisodeBatch) -> Iterator[dict[str, Any]]:
    if one.num_steps != other.num_steps:
        yield _difference(min(one.num_steps, other.num_steps), "length", one.num_steps, other.num_steps)
    for name in ("terminated", "truncated"):
        left, right = (bool(getattr(batch, name)[0]) for batch in (one, other))
        if left != right:
            yield _difference(max(one.num_steps, other.num_steps) - 1, name, left, right)


def _unlike_infos(one: EpisodeBatch, other: EpisodeBatch) -> Iterator[dict[str, Any]]:
    mine, theirs = (_info_texts(batch).get(0, {}) for batch in (one, other))
    steps = sorted(step for step in mine.keys() | theirs.keys() if mine.get(step) != theirs.get(step))
    if steps:
        left, right = (json.loads(known.get(steps[0], "{}")) for known in (mine, theirs))
        yield _difference(steps[0], Columns.INFOS, left, right)
