"""`diff`: compare two sources in any formats; episodes are matched by id, in any order.

Each source is read once, keeping a 64-bit fingerprint of every episode. The first episode that differs is read again from both
sources and compared value by value. Numbers are compared with `==`, and NaN equals NaN; dtypes and shapes must agree. Data that
`columns` cannot hold is compared only if neither source has that format. Order and row format are only notes.
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
from typing import Any, Final, Unpack

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offline_cli.choices import SOURCE_FORMAT
from offline_cli.columns import Columns
from offline_cli.converting.operations.operation import OpenedSources, ReadingOptions, with_options
from offline_cli.converting.reading import EpisodeStream
from offline_cli.datasets.dataset import holds_dataset
from offline_cli.environments import EnvironmentSpec
from offline_cli.episodes.batch import EpisodeBatch, in_words
from offline_cli.episodes.codec.pack import plain_mapping
from offline_cli.episodes.known_episodes import fingerprints
from offline_cli.errors import TargetNotMet
from offline_cli.spaces import describe, same_space
from offline_cli.storage.locations import Location, expand
from offline_cli.tally import Tally
from offline_cli.trees import equal_values, flatten

NAMED: Final = 10  # listed ids of each kind
NUMPY: Final = (np.generic, np.ndarray)
NOT_COMPARED: Final = "custom data except the source id, clocks and ids of multi-agent episodes, which columns cannot hold"


@dataclass(frozen=True, slots=True)
class DiffResult:
    """The differences between two sources."""

    a: str
    b: str
    equal: bool
    missing: int  # episodes in only one source
    missing_in_a: int
    missing_in_b: int
    changed: int  # episodes that differ
    first: Mapping[str, Any] | None  # episode, step, column, index within the value, and both values; None: equal
    facts: tuple[Mapping[str, Any], ...]  # declarations for all episodes that differ: column, a, b
    notes: tuple[str, ...]  # differences that do not count
    ids: Mapping[str, tuple[str, ...]]  # the first 10 of missing_in_a, missing_in_b and changed
    episodes_a: int
    episodes_b: int
    steps_a: int
    steps_b: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the keys of `--json`."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    def check(self) -> None:
        """Raise TargetNotMet unless the two are equal; its `result` is `as_dict()`."""
        if self.first is None:
            return
        counts = {f"only in {self.a}": self.missing_in_b, f"only in {self.b}": self.missing_in_a, "changed": self.changed}
        told = [f"{count:,} episodes {words}" for words, count in counts.items() if count] or ["the declarations differ"]
        place = ", ".join(f"{key} {self.first[key]}" for key in ("episode", "step", "column") if self.first[key] is not None)
        what = f"{', '.join(told)}; first: {place}: {self.first['a']} and {self.first['b']}"
        fix = "see --json for all counts; episodes are matched by id, which formats such as npz lack"
        raise TargetNotMet(what, where=f"{self.a} and {self.b}", fix=fix, result=self.as_dict())


@with_options
def diff(
    a: str | os.PathLike[str] | Location, b: str | os.PathLike[str] | Location, **options: Unpack[ReadingOptions]
) -> DiffResult:
    """Compare `a` and `b`; `check` of the result raises if they differ. Raises as `read_episodes` does."""
    started = time.monotonic()
    one, other = (_opened(place, options) for place in (a, b))
    formats = [", ".join(dict.fromkeys(source.info.format for source in side.sources)) for side in (one, other)]
    everything = "columns" not in formats
    mine, theirs = _Summary.of(one, everything=everything), _Summary.of(other, everything=everything)
    both = mine.table.join(theirs.table, on="id", how="full", coalesce=True).sort("row", "row_right", nulls_last=True)
    found = {
        "missing_in_a": both.filter(pl.col("row").is_null()),
        "missing_in_b": both.filter(pl.col("row_right").is_null()),
        "changed": both.filter(pl.col("mark") != pl.col("mark_right")),
    }
    counts = {name: table.height for name, table in found.items()}
    ids = {name: tuple(key.decode("utf-8", "surrogatepass") for key in table["id"][:NAMED]) for name, table in found.items()}
    facts = tuple(_unlike_facts(mine.stream, theirs.stream))
    first: dict[str, Any] | None = None
    if ids["changed"]:
        name = ids["changed"][0]
        first = {"episode": name, **_first_difference(_episode(one, name), _episode(other, name), everything=everything)}
    elif ids["missing_in_b"]:
        first = {"episode": ids["missing_in_b"][0], **_difference(None, None, "there", "missing")}
    elif ids["missing_in_a"]:
        first = {"episode": ids["missing_in_a"][0], **_difference(None, None, "missing", "there")}
    elif facts:
        first = {"episode": None, **facts[0]}
    return DiffResult(
        a=one.where,
        b=other.where,
        equal=first is None,
        missing=counts["missing_in_a"] + counts["missing_in_b"],
        **counts,
        first=first,
        facts=facts,
        notes=tuple(_notes(formats, both)),
        ids=ids,
        episodes_a=mine.table.height,
        episodes_b=theirs.table.height,
        steps_a=mine.steps,
        steps_b=theirs.steps,
        seconds=time.monotonic() - started,
    )


def _opened(place: str | os.PathLike[str] | Location, options: Mapping[str, Any]) -> OpenedSources:
    """One of the two. Where it is a dataset, format and mapping are the other one's."""
    places = expand(place, options["storage_options"])
    if len(places) == 1 and places[0].is_dir() and holds_dataset(places[0]):
        own = {"from_": SOURCE_FORMAT, "mapping": None, "rows_as_episodes": False, "episode_ends": None}
        return OpenedSources({**options, **own}, places)
    return OpenedSources(options, places)


@dataclass(frozen=True, slots=True)
class _Summary:
    """The summary of one source."""

    table: pl.DataFrame  # one row per episode, in order: row, id (bytes), mark (fingerprint)
    steps: int
    stream: EpisodeStream  # exhausted; kept for its declarations

    @classmethod
    def of(cls, side: OpenedSources, *, everything: bool) -> _Summary:
        """Read all episodes."""
        ids, marks, steps = list[bytes](), [np.zeros(0, np.uint64)], 0
        with side.stream() as stream:
            for batch in stream:
                texts = (json.dumps(one, sort_keys=True).encode() if one else b"" for one in _beside_steps(batch, everything))
                digests = (blake2b(text, digest_size=8).digest() if text else bytes(8) for text in texts)
                ids += (name.encode("utf-8", "surrogatepass") for name in batch.ids)
                marks.append(fingerprints(batch) ^ np.frombuffer(b"".join(digests), np.uint64))
                steps += batch.num_steps
        table = pl.DataFrame({"id": pl.Series(ids, dtype=pl.Binary), "mark": np.concatenate(marks)})
        return cls(table.with_row_index("row"), steps, stream)


def _episode(side: OpenedSources, name: str) -> EpisodeBatch:
    """Read the episode with an existing id, as a batch of one."""
    with side.stream() as stream, closing(iter(stream)) as batches:  # type: ignore[type-var]
        return next(batch.select([batch.ids.index(name)]) for batch in batches if name in batch.ids)


def _notes(formats: Sequence[str], both: pl.DataFrame) -> Iterator[str]:
    if formats[0] != formats[1]:
        unseen = f"; not compared: {NOT_COMPARED}" if "columns" in formats else ""
        yield f"A is in the format {formats[0]}, B in {formats[1]}{unseen}"
    if not both.drop_nulls()["row_right"].is_sorted():
        yield "the episodes are in a different order"


def _unlike_facts(one: EpisodeStream, other: EpisodeStream) -> Iterator[dict[str, Any]]:
    """Yield declarations for all episodes that differ."""
    for name in ("observation_space", "action_space"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if not same_space(mine, theirs):
            words = repr if describe(mine) == describe(theirs) else describe  # `repr` shows bounds and dtypes
            yield _difference(None, name, words(mine), words(theirs))
    if one.action_scale != other.action_scale:
        yield _difference(None, "action_scale", one.action_scale, other.action_scale)
    if (environment := _said(one.environment)) != (theirs := _said(other.environment)):
        yield _difference(None, "environment", environment, theirs)
    if found := one.meanings.difference(other.meanings):
        yield _difference(None, found[0], *found[2:], [found[1]])


def _said(known: EnvironmentSpec | None) -> str:
    kwargs = [json.dumps(dict(known.kwargs), sort_keys=True)] if known is not None and known.kwargs else []
    return "none" if known is None else " ".join([known.id, *kwargs, *known.wrappers])


# ---- contents of an episode ----


def _beside_steps(batch: EpisodeBatch, everything: bool) -> list[dict[str, Any]]:
    """(E,) data of each episode besides its steps, by name, as JSON values; infos by timestep. `everything`: see `diff`."""
    none = (None,) * len(batch)
    custom: Sequence[Mapping[str, Any]] = batch.custom_data or ({},) * len(batch)
    if not everything:
        custom = [{name: data[name] for name in data if name == Columns.SOURCE_ID} for data in custom]
    columns: dict[str, Sequence[Any]] = {"agent_id": batch.agent_ids or none, "module_id": batch.module_ids or none}
    columns["custom_data"] = [_plain(data) or None for data in custom]
    if everything:
        columns["multi_agent_episode_id"] = batch.multi_agent_ids or none
        columns["clock"] = (
            none if batch.clock is None else [None if np.isnan(row).all() else row.tolist() for row in batch.clock]
        )
    rows = zip(*columns.values(), strict=True)
    found: list[dict[str, Any]] = [{k: v for k, v in zip(columns, row, strict=True) if v is not None} for row in rows]
    for row, info in enumerate(batch.infos or ()):
        if info:
            entry = int(np.searchsorted(batch.obs_starts, row, side="right")) - 1
            found[entry].setdefault(Columns.INFOS, {})[row - int(batch.obs_starts[entry])] = _plain(info)
    return found


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values that are equal for equal data, in either row format."""
    plain = plain_mapping(data, tally=Tally(), where="infos")
    return dict(
        json.loads(json.dumps(plain, default=lambda value: value.tolist() if isinstance(value, NUMPY) else repr(value)))
    )


def _first_difference(one: EpisodeBatch, other: EpisodeBatch, *, everything: bool) -> dict[str, Any]:
    """The first difference of two episodes: step (None: of the episode), column, index within the value, and both values."""
    found, lengths = [], (one.num_steps, other.num_steps)
    if lengths[0] != lengths[1]:
        found.append(_difference(min(lengths), "length", *lengths))
    mine, theirs = _leaves(one), _leaves(other)
    for path in {**mine, **theirs}:
        left, right = mine.get(path), theirs.get(path)
        forms = [in_words(None if leaf is None else (leaf.dtype, leaf.shape[1:])) for leaf in (left, right)]
        if forms[0] != forms[1]:
            found.append(_difference(0, path, forms[0], forms[1]))
        if left is not None and right is not None and left.shape[1:] == right.shape[1:]:
            rows = min(len(left), len(right))
            unlike = ~equal_values(left[:rows], right[:rows])
            if unlike.any():
                row, *index = place = tuple(int(i) for i in np.unravel_index(int(np.argmax(unlike)), unlike.shape))
                found.append(_difference(row, path, _number(left[place]), _number(right[place]), index or None))
    for name in ("terminated", "truncated"):
        flags = bool(getattr(one, name)[0]), bool(getattr(other, name)[0])
        if flags[0] != flags[1]:
            found.append(_difference(max(lengths) - 1, name, *flags))
    beside = [_beside_steps(batch, everything)[0] for batch in (one, other)]
    infos: list[dict[int, Any]] = [each.pop(Columns.INFOS, {}) for each in beside]
    for step, name, mine_is, other_is in (
        *((None, name, beside[0].get(name), beside[1].get(name)) for name in {**beside[0], **beside[1]}),
        *((step, Columns.INFOS, infos[0].get(step, {}), infos[1].get(step, {})) for step in {**infos[0], **infos[1]}),
    ):
        if mine_is != other_is:
            found.append(_difference(step, name, mine_is, other_is))
    return min(found, key=lambda difference: np.inf if difference["step"] is None else difference["step"])


def _leaves(batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
    trees = {Columns.OBS: batch.obs, Columns.ACTIONS: batch.actions, Columns.REWARDS: batch.rewards, **batch.extra}
    return {path: leaf for name, tree in trees.items() for path, leaf in flatten(tree, name)}


def _difference(step: int | None, column: str | None, a: Any, b: Any, index: Sequence[int] | None = None) -> dict[str, Any]:
    return {"step": step, "column": column, "index": index, "a": a, "b": b}


def _number(value: Any) -> Any:
    """A number for JSON; NaN and infinities as text."""
    plain = value.item()
    return plain if not isinstance(plain, float) or np.isfinite(plain) else str(plain)
