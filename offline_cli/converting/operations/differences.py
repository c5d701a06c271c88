"""`diff`: what differs between two sources, whatever their formats; episodes are compared by id, whatever their order.

Each source is read once, and of every episode two 64-bit fingerprints are kept: of its steps, and of all else that it holds.
Where some differ, the first such episode is read again from both and compared value by value. Numbers are equal where `==` says
so, and NaN equals NaN; dtypes and shapes have to agree. What `columns` cannot hold is compared only where neither is in that
format. Order, row format and how a manifest came to its spaces are notes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from operator import itemgetter
from typing import Any, Final, Unpack

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offline_cli.choices import SOURCE_FORMAT
from offline_cli.columns import Columns
from offline_cli.converting.operations.operation import OpenedSources, ReadingOptions, with_options
from offline_cli.datasets.dataset import holds_dataset
from offline_cli.environments import EnvironmentSpec
from offline_cli.episodes.batch import EpisodeBatch, Form, forms, in_words
from offline_cli.episodes.codec.pack import plain_mapping
from offline_cli.episodes.known_episodes import fingerprints
from offline_cli.errors import TargetNotMet
from offline_cli.meanings import Meanings
from offline_cli.spaces import Space, describe, same_space
from offline_cli.storage.locations import Location, expand
from offline_cli.tally import Tally
from offline_cli.trees import Tree, equal_values, flatten

__all__ = ["DiffResult", "diff"]

NAMED: Final = 10  # ids of each kind
ID, A, B = "id", "a", "b"
NOT_COMPARED: Final = "custom data but the id of the source, clocks and ids of multi-agent episodes, which columns do not hold"


@dataclass(frozen=True, slots=True)
class DiffResult:
    """What differs."""

    a: str
    b: str
    equal: bool
    missing: int  # episodes that only one of the two has
    missing_in_a: int
    missing_in_b: int
    changed: int  # episodes of one id that differ
    first: Mapping[str, Any] | None  # episode, step, column, index within the value, and both values; None: equal
    facts: tuple[Mapping[str, Any], ...]  # what is declared of all episodes, and differs: column, a, b
    notes: tuple[str, ...]  # what may differ
    ids: Mapping[str, tuple[str, ...]]  # the first 10 of missing_in_a, missing_in_b and changed
    episodes_a: int
    episodes_b: int
    steps_a: int
    steps_b: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    def check(self) -> None:
        """Raise TargetNotMet unless the two are equal; its `result` is `as_dict()`."""
        if self.equal:
            return
        fix = "--json has all counts; the same episodes in another order or row format would be equal"
        if self.episodes_a and self.episodes_b and self.missing == self.episodes_a + self.episodes_b:
            fix = "if they are the same ones: episodes are compared by their ids, which files without ids, such as npz, lack"
        what, where = f"{self._counts()}; {self._first()}", f"{self.a} and {self.b}"
        raise TargetNotMet(what, where=where, fix=fix, result=self.as_dict())

    def _counts(self) -> str:
        """How many episodes differ, in words."""
        alone = (self.missing_in_b, self.a), (self.missing_in_a, self.b)
        apart = [f"{count:,} are in {url} only" for count, url in alone if count]
        unlike = [f"{self.changed:,} of the episodes in both differ"] if self.changed else []
        if not (unlike or apart):
            return "the episodes are the same, and what is declared of them differs"
        return ", and ".join([*unlike, *apart])

    def _first(self) -> str:
        """The first difference, in words."""
        first = self.first or {}
        place = ", ".join(f"{name} {first[name]}" for name in ("episode", "step", "column") if first.get(name) is not None)
        return f"first: {place}: {first.get('a')} and {first.get('b')}"


@with_options
def diff(
    a: str | os.PathLike[str] | Location, b: str | os.PathLike[str] | Location, **options: Unpack[ReadingOptions]
) -> DiffResult:
    """What differs between `a` and `b`; `check` of the result raises where anything does. Raises as `read_episodes` does."""
    started = time.monotonic()
    one, other = (_opened(place, options) for place in (a, b))
    formats = [", ".join(dict.fromkeys(source.info.format for source in side.sources)) for side in (one, other)]
    everything = "columns" not in formats
    one_known, other_known = _summary(one, everything=everything), _summary(other, everything=everything)
    compared = _joined(one_known.table, other_known.table)
    found = {name: compared.filter(which) for name, which in _WHICH.items()}
    ids = {name: tuple(map(_text_of, table.get_column(ID).head(NAMED))) for name, table in found.items()}
    facts = tuple(one_known.facts_unlike(other_known))
    first: dict[str, Any] | None = None
    if name := next(iter(ids["changed"]), None):
        first = {"episode": name, **_first_difference(_episode(one, name), _episode(other, name), everything=everything)}
    elif lacks := next((name for name in ("missing_in_b", "missing_in_a") if ids[name]), None):
        said = ("there", "missing") if lacks == "missing_in_b" else ("missing", "there")
        first = {"episode": ids[lacks][0], **_difference(None, None, *said)}
    elif facts:
        first = {"episode": None, **facts[0]}
    counts = {name: table.height for name, table in found.items()}
    return DiffResult(
        a=one.where,
        b=other.where,
        equal=first is None,
        missing=counts["missing_in_a"] + counts["missing_in_b"],
        missing_in_a=counts["missing_in_a"],
        missing_in_b=counts["missing_in_b"],
        changed=counts["changed"],
        first=first,
        facts=facts,
        notes=tuple(_notes(formats, one_known, other_known, compared)),
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


def _notes(formats: Sequence[str], known: _Summary, other: _Summary, compared: pl.DataFrame) -> Iterator[str]:
    if formats[0] != formats[1]:
        unseen = f"; not compared: {NOT_COMPARED}" if "columns" in formats else ""
        yield f"A is in the format {formats[0]}, B in {formats[1]}{unseen}"
    if not compared.drop_nulls().get_column("row_b").is_sorted():
        yield "the episodes come in another order"
    if bool(known.meanings.by_path) != bool(other.meanings.by_path):
        yield f"{'A' if known.meanings.by_path else 'B'} says what its columns mean, the other does not"
    if known.spaces_inferred != other.spaces_inferred:
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


def _opened(place: str | os.PathLike[str] | Location, options: Mapping[str, Any]) -> OpenedSources:
    """One of the two. Where it is a dataset, format and mapping are the other one's."""
    places = expand(place, options["storage_options"])
    if len(places) == 1 and places[0].is_dir() and holds_dataset(places[0]):
        own = {"from_": SOURCE_FORMAT, "mapping": None, "rows_as_episodes": False, "episode_ends": None}
        return OpenedSources({**options, **own}, places)
    return OpenedSources(options, places)


def _summary(side: OpenedSources, *, everything: bool) -> _Summary:
    """Of all episodes. A dataset of ours may have none."""
    info = side.sources[0].info
    if len(side.sources) == 1 and info.manifest is not None and not info.manifest.counts.episodes:
        named = _environment(info.environment)
        return _Summary(_table([], [], []), 0, *info.spaces, info.spaces_inferred, info.action_scale, named, info.meanings)
    ids, of_steps, of_rest, steps = list[bytes](), list[NDArray[np.uint64]](), list[NDArray[np.uint64]](), 0
    with side.stream() as stream:
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


def _episode(side: OpenedSources, name: str) -> EpisodeBatch:
    """The one with an id that is there, as a batch of it alone."""
    with side.stream() as stream, closing(iter(stream)) as batches:  # type: ignore[type-var]
        return next(batch.select([batch.ids.index(name)]) for batch in batches if name in batch.ids)


def _text_of(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


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
    found = [*_unlike_forms(one, other), *_unlike_values(one, other)]
    ends = [{"terminated": bool(batch.terminated[0]), "truncated": bool(batch.truncated[0])} for batch in (one, other)]
    last = max(one.num_steps, other.num_steps) - 1
    found += [_difference(last, name, *values) for name, *values in _unlike(*ends)]
    if one.num_steps != other.num_steps:
        step = min(one.num_steps, other.num_steps)
        found.insert(0, _difference(step, "length", one.num_steps, other.num_steps))
    texts = [_info_texts(batch).get(0, {}) for batch in (one, other)]
    for step, *infos in sorted(_unlike(*texts), key=itemgetter(0))[:1]:
        found.append(_difference(step, Columns.INFOS, *(json.loads(text or "{}") for text in infos)))
    known = [_of_episode(batch, everything=everything) for batch in (one, other)]
    singles = [{name: None if values is None else values[0] for name, values in of.items()} for of in known]
    found += [_difference(None, name, *values) for name, *values in _unlike(*singles)]
    assert found, "episodes of other fingerprints differ"
    return min(found, key=lambda one: np.inf if one["step"] is None else one["step"])


def _unlike(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> list[tuple[Any, Any, Any]]:
    """The keys whose values differ, with both."""
    return [(key, one.get(key), other.get(key)) for key in {**one, **other} if one.get(key) != other.get(key)]


def _difference(step: int | None, column: str | None, a: Any, b: Any, index: Sequence[int] | None = None) -> dict[str, Any]:
    return {"step": step, "column": column, "index": index, A: a, B: b}


def _unlike_forms(one: EpisodeBatch, other: EpisodeBatch) -> Iterator[dict[str, Any]]:
    for path, mine, theirs in _unlike(_forms(one), _forms(other)):
        yield _difference(0, path, in_words(mine), in_words(theirs))


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
