"""`inspect`: summary statistics of data, from a dataset's manifest or by reading everything; unmet expectations raise.

A foreign source is read as `convert` reads it, so the statistics are those of the resulting dataset: fragments joined and
duplicates dropped, both counted. For a dataset, `inspect` reads only the manifest, and on local disks checks the shards' sizes.
Readers, storage clients and pyarrow take 0.5 s to import, so they are imported only when needed. Statistics and histograms of
columns, episodes by agent and module (`deep`), and single episodes (`episode`, `head`) are read from the shards.

`Expected` is a condition on a result: `inspect --expect episodes=100 --expect 'return.mean>=450'`.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from offline_cli.checked_keywords import checked
from offline_cli.choices import SOURCE_FORMAT, TABLE_MEMORY_LIMIT, Count, EpisodeEnds
from offline_cli.datasets.file_names import DATA, MANIFEST, WRITING
from offline_cli.datasets.manifest import Manifest
from offline_cli.errors import BadData, OfflineCliError, TargetNotMet, UsageError
from offline_cli.meanings import Meanings
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.schema_files import json_or_text
from offline_cli.spaces import Space, describe, space_to_json
from offline_cli.stop_signals import check
from offline_cli.storage.local_files import SIGNS, read_plain

if TYPE_CHECKING:
    from offline_cli.converting.reading import EpisodeStream
    from offline_cli.episodes.batch import EpisodeBatch
    from offline_cli.formats.source import Source
    from offline_cli.storage.locations import Sources


OPTION: Final = "--expect"
KEY: Final = re.compile(r"\s*([^<>=!~]*?)\s*([<>=!~]*)\s*")  # a name and an operator
ORDERS: Final = {"=": operator.eq, ">=": operator.ge, "<=": operator.le}
COUNTS: Final = ("assumptions", "modules", "agents")  # a missing key in them means 0


class Expected(NamedTuple):
    """An expectation: a dotted name, an operator and a value."""

    name: str
    order: str  # "=", ">=" or "<="
    want: Any


def parsed_expectations(expect: Mapping[str, Any], keys: Collection[str]) -> list[Expected]:
    """Parse expectations such as `{"episodes": 100, "return.mean>=": 450}`; `keys`: top-level keys of the document.

    Raises UsageError, naming all mistakes: unknown keys and operators, non-numeric bounds.
    """
    found, wrong = [], []
    for key, want in expect.items():
        parsed = KEY.fullmatch(key)
        name, order = parsed.groups() if parsed else (key, "")
        order = "=" if order in ("", "==") else order
        if order not in ORDERS:
            wrong.append(f"unknown operator {order!r} for {name!r}, use =, >= or <=")
        if name.partition(".")[0] not in keys:
            wrong.append(f"nothing is called {name!r}")
        if order in (">=", "<=") and _number(want) is None:
            wrong.append(f"{name} {order} {want!r} does not compare numbers")
        found.append(Expected(name, order, want))
    if wrong:
        fix = f"write KEY=VALUE, KEY>=NUMBER or KEY<=NUMBER; keys: {', '.join(keys)}"
        raise UsageError("; ".join(wrong), where=OPTION, fix=fix)
    return found


def check_expected(expected: Sequence[Expected], document: Mapping[str, Any], *, where: str) -> None:
    """Raise TargetNotMet, naming all unmet expectations; UsageError for nested names that do not exist."""
    wrong, unknown, unmet = [], [], []
    for name, order, want in expected:
        try:
            value = _value_at(document, name)
        except KeyError:
            unknown.append(f"nothing is called {name!r}")
            continue
        if not _holds(value, order, want):
            wrong.append(f"{name} is {value}, expected {'' if order == '=' else f'{order} '}{want}")
            typed = json_or_text(want) if isinstance(want, str) else want
            unmet.append({"key": name, "is": value, "order": order, "value": typed})
    if unknown:
        raise UsageError("; ".join(unknown), where=OPTION, fix="--json shows all keys with their values")
    if wrong:
        fix = "check the data with inspect, or correct the expectation"
        raise TargetNotMet("; ".join(wrong), where=where, fix=fix, details={"unmet": unmet})


def _value_at(document: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name, with numbers as list indices; a missing count is 0. Raises KeyError."""
    top, _, kind = name.partition(".")
    counted = document.get(top)
    if top in COUNTS and kind and isinstance(counted, Mapping):
        return counted.get(kind, 0)
    value: Any = document
    for part in name.split("."):
        if isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping):
            value = value[part]
        else:
            raise KeyError(part)
    return value


def _holds(value: Any, order: str, want: Any) -> bool:
    """Whether an expectation holds. Numbers may be text, and are compared to 9 digits; all elements of a list must hold."""
    if isinstance(value, list | tuple) and value and value != want and not isinstance(want, list | tuple):
        return all(_holds(element, order, want) for element in value)
    have, wanted = None if isinstance(value, str) else _number(value), _number(want)
    if have is not None and wanted is not None:
        return math.isclose(wanted, have, rel_tol=1e-9) or bool(ORDERS[order](have, wanted))
    return order == "=" and bool(value == want or str(value).lower() == str(want).lower())


def _number(value: Any) -> float | None:
    """Convert a number, or its text; None for anything else."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


ABOUT_READING: Final = (  # options that a manifest alone cannot answer
    *("from_", "mapping", "rows_as_episodes", "episode_ends", "deep", "episode", "head"),
    *("temp_dir", "memory_limit", "storage_options"),
)
SHOWN_STEPS: Final = 5  # steps shown at each end of an episode
TIMELINE: Final = 32  # time intervals of an episode whose means are shown


@dataclass(frozen=True, slots=True)
class Inspection:
    """Summary statistics of one or more sources combined.

    `truncated` counts stored flags. `unfinished` counts the truncated episodes that have the flag only because their recording
    stopped.
    """

    format: str  # of the sources, joined by ", "
    sources: tuple[str, ...]
    episodes: int
    steps: int
    terminated: int
    truncated: int
    unfinished: int
    observation_space: Space | None
    action_space: Space | None
    spaces_inferred: bool
    action_scale: str  # "env" | "normalized" | "unknown"
    environment: str | None
    returns: Mapping[str, Any]  # mean, std, min, max, quantiles by percent; undiscounted sums of rewards
    length: Mapping[str, Any]  # the same, in steps
    meanings: Meanings  # of columns: names, categories and units, where declared
    episodes_lost: int | None  # source episodes that are missing; None: not in the manifest
    assumptions: Mapping[str, int]
    complete: bool  # False: the writer was stopped, and committed only complete shards
    from_manifest: bool  # False: all episodes were read
    columns: Mapping[str, Any] = field(default_factory=dict)  # as `returns`, without quantiles; empty: steps were not read
    duplicates_dropped: int = 0
    rows_quarantined: int = 0
    dropped_columns: tuple[str, ...] = ()  # names; unknown for a dataset
    dropped_reasons: Mapping[str, str] = field(default_factory=dict)  # by name
    modules: Mapping[str, int] | None = None  # episodes by module id, if any; None: not in the manifest
    agents: Mapping[str, int] | None = None  # episodes by agent id, likewise
    histograms: Mapping[str, Any] | None = None  # of return, length and columns: see Spread.as_json; None: steps were not read
    first_episodes: Sequence[Mapping[str, Any]] | None = None  # for `head`: id, length, return, end flags
    shown_episode: Mapping[str, Any] | None = None  # for `episode`: the same, its steps, its columns over time
    shards: int | None = None  # listed in the manifest; None: not a dataset, or several sources
    wrong_shards: Sequence[str] | None = None  # missing shards, or of another size, as text; None: files were not checked

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the keys of `--json`; spaces as JSON, and as one line of text."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "returns"}
        return {
            **plain,
            "sources": list(self.sources),
            "observation_space": self.observation_space and space_to_json(self.observation_space),
            "action_space": self.action_space and space_to_json(self.action_space),
            "observation_space_text": describe(self.observation_space),
            "action_space_text": describe(self.action_space),
            "return": dict(self.returns),
            "length": dict(self.length),
            "columns": dict(self.columns),
            "meanings": self.meanings.as_json(),
            "assumptions": dict(sorted(self.assumptions.items())),
        }


KEYS: Final = (
    *("return" if name == "returns" else name for name in Inspection.__slots__),
    *("observation_space_text", "action_space_text"),
)
"""The keys of `as_dict`."""
FACTS: Final = (
    *("format", "observation_space", "action_space", "spaces_inferred", "action_scale", "meanings"),
    *("episodes_lost", "assumptions", "complete"),
)
"""Fields with the same name in manifests, and all but two in streams."""


@checked
def inspect(
    sources: Sources,
    *,
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    on_error: Literal["fail", "skip"] = "fail",
    expect: Mapping[str, Any] | None = None,
    deep: bool = False,
    episode: str | None = None,
    head: Count | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    memory_limit: int | str = TABLE_MEMORY_LIMIT,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
) -> Inspection:
    """Summarize `sources`, combined.

    `expect` names values by the keys of `as_dict`, with dots for nested ones (`return.mean`); `{"steps>=": 100}` and
    `{"steps<=": 100}` are bounds. A number selects an element (`columns.obs.max.0`); a list is compared element by element;
    expectations on columns read the steps of a dataset, as `deep` does. A kind of `assumptions` that was not counted is 0.
    Raises TargetNotMet, naming all unmet expectations, UsageError for unknown keys, kinds, operators and episodes, and as
    `read_episodes` does.
    """
    options = dict(locals())
    expected = parsed_expectations(expect or {}, KEYS)
    options["deep"] |= any(one.name.partition(".")[0] == "columns" for one in expected)
    found = _of_local_dataset(sources, options) or _of_sources(sources, options)
    check_expected(expected, found.as_dict(), where=", ".join(found.sources))
    return found


def _of_local_dataset(sources: Sources, options: Mapping[str, Any]) -> Inspection | None:
    """Statistics of one committed local dataset without further options; None for all other sources, including damaged
    manifests, whose error is raised when they are opened.
    """
    listed = sources if isinstance(sources, list | tuple) else [sources]
    if len(listed) != 1 or not isinstance(listed[0], str | os.PathLike):
        return None
    folder = os.fspath(listed[0])
    is_url = not folder or folder.startswith("~") or any(sign in folder for sign in SIGNS)
    if is_url or any(options[name] not in (None, False, SOURCE_FORMAT, TABLE_MEMORY_LIMIT) for name in ABOUT_READING):
        return None
    place = f"{folder.rstrip('/')}/{MANIFEST}"
    try:
        if os.path.exists(os.path.join(folder, WRITING)):
            return None
        manifest = Manifest.from_bytes(read_plain(place, shown=place), where=place)
    except (OSError, ValueError, OfflineCliError):  # ValueError: an invalid path
        return None
    data = os.path.join(folder, DATA)
    files = os.scandir(data) if os.path.isdir(data) else ()
    sizes = {f"{DATA}/{file.name}": file.stat().st_size for file in files if file.is_file()}
    return _of_manifest(folder, manifest, sizes, is_gated=bool(options["expect"]))


def _of_manifest(location: str, manifest: Manifest, sizes: Mapping[str, int] | None, *, is_gated: bool) -> Inspection:
    """The statistics in a manifest, and its shards that are missing or have another size. `sizes`: bytes by path, if known.

    Raises BadData, naming all such shards, if `is_gated`.
    """
    wrong = [
        f"{shard.path} has {sizes[shard.path]} bytes, not {shard.bytes}" if shard.path in sizes else f"{shard.path} is missing"
        for shard in (() if sizes is None else manifest.shards)
        if sizes is not None and sizes.get(shard.path) != shard.bytes
    ]
    if wrong and is_gated:
        fix = "restore the files from a copy, or see what `offline-cli repair` can keep"
        raise BadData.of(wrong, where=location, fix=fix)
    return Inspection(
        sources=(location,),
        **{name: getattr(manifest, name) for name in FACTS},
        **asdict(manifest.counts),
        environment=manifest.environment.id if manifest.environment else None,
        returns=manifest.statistics["return"],
        length=manifest.statistics["length"],
        from_manifest=True,
        shards=len(manifest.shards),
        wrong_shards=None if sizes is None else wrong,
    )


def _of_sources(sources: Sources, options: Mapping[str, Any]) -> Inspection:
    """Statistics of any sources: of one dataset from its manifest, otherwise by reading."""
    from offline_cli.converting.reading import read_episodes
    from offline_cli.formats.opening import open_sources
    from offline_cli.formats.tables import TableOptions

    tables = TableOptions.of(options)
    opened = open_sources(sources, from_=options["from_"], tables=tables, storage_options=options["storage_options"])
    manifest = opened[0].info.manifest if len(opened) == 1 else None
    look = _CloserLook(options["head"], options["episode"], is_deep=manifest is None or options["deep"])
    if manifest is None:
        how = {name: options[name] for name in ("on_error", "on_progress")}
        with read_episodes(opened=opened, tables=tables, **how) as stream:
            return look.added_to(_by_reading(stream, look))
    source: Any = opened[0]
    place, sizes = source.dataset.location, None
    if place.is_local or options["expect"]:
        sizes = {file.path[len(place.path.rstrip("/")) + 1 :]: file.size() for file in place.join(DATA).files()}
    found = _of_manifest(source.info.location, manifest, sizes, is_gated=bool(options["expect"]))
    if not look.is_done:
        _look_at_dataset(source, look, options["on_progress"])
    found = look.added_to(found)
    return replace(found, wrong_shards=[]) if found.wrong_shards is None and look.is_deep else found


def _look_at_dataset(source: Source, look: _CloserLook, on_progress: OnProgress) -> None:
    """Read as much of our dataset as is needed."""
    from offline_cli.tally import Rejects, Tally

    with closing(source):
        for part in source.fragments(Tally(), Rejects()):
            check()
            look.add(part.batch)
            on_progress(Progress("reading", source.done, source.size, source.unit))
            if look.is_done:
                return


def _by_reading(stream: EpisodeStream, look: _CloserLook) -> Inspection:
    from offline_cli.datasets.statistics import EpisodeStatistics

    builder = EpisodeStatistics()
    for batch in stream:
        builder.add(batch)
        look.add(batch)
    statistics, tally = builder.as_json(), stream.tally
    known: dict[str, Any] = {
        "format": ", ".join(dict.fromkeys(stream.formats)),
        "assumptions": {**tally.assumptions, **stream.lost_by_reason},
    }
    return Inspection(
        sources=tuple(stream.locations),
        **known,
        **{name: getattr(stream, name) for name in FACTS if name not in known},
        **asdict(builder.counts(tally.assumptions)),
        environment=stream.environment.id if stream.environment else None,
        returns=statistics["return"],
        length=statistics["length"],
        duplicates_dropped=tally.duplicates_dropped,
        rows_quarantined=stream.rejects.count,
        dropped_columns=tuple(tally.dropped_columns),
        dropped_reasons=dict(tally.dropped_columns),
        from_manifest=False,
    )


# ---- statistics from steps ----


class _CloserLook:
    """Collects column statistics and the requested episodes from batches."""

    def __init__(self, head: int | None, episode: str | None, *, is_deep: bool) -> None:
        """`head`: number of first episodes; `episode`: an id, ours or the source table's; `is_deep`: statistics of all."""
        from offline_cli.checking.column_statistics import ColumnsBuilder

        self._head, self._episode, self.is_deep = head, episode, is_deep
        self._figures = ColumnsBuilder()
        self._agents, self._modules = Counter[str](), Counter[str]()
        self._rows: list[dict[str, Any]] = []
        self._found: dict[str, Any] | None = None

    @property
    def is_done(self) -> bool:
        """Whether no further batch is needed."""
        are_found = len(self._rows) >= (self._head or 0) and (self._episode is None or self._found is not None)
        return are_found and not self.is_deep

    def add(self, batch: EpisodeBatch) -> None:
        """Process a batch."""
        if self._episode is not None and self._found is None:
            ids = batch.ids if self._episode in batch.ids else _ids_in_tables(batch)
            if self._episode in ids:
                number = ids.index(self._episode)
                self._found = _described(batch.select(slice(number, number + 1)))
        if len(self._rows) < (self._head or 0):
            self._rows += _rows(batch.select(slice(0, (self._head or 0) - len(self._rows))))
        if self.is_deep:
            self._figures.add(batch)
            self._agents.update(name for name in batch.agent_ids or () if name is not None)
            self._modules.update(name for name in batch.module_ids or () if name is not None)

    def added_to(self, found: Inspection) -> Inspection:
        """Add the results to `found`. Raises UsageError if the requested episode does not exist."""
        if self._episode is not None and self._found is None:
            fix = "list ids with offline-cli inspect SRC --head 20; an episode's id in its source table works too"
            raise UsageError(f"no episode is called {self._episode!r}", where=", ".join(found.sources), fix=fix)
        if self.is_deep:
            agents, modules = dict(self._agents), dict(self._modules)
            deep: dict[str, Any] = {"columns": self._figures.as_json(), "histograms": self._figures.histograms()}
            found = replace(found, agents=agents, modules=modules, **deep)
        return replace(found, shown_episode=self._found, first_episodes=None if self._head is None else self._rows)


def _ids_in_tables(batch: EpisodeBatch) -> list[Any]:
    """(E,) the episodes' ids in their source table, or None; empty if no episode has one."""
    from offline_cli.columns import Columns

    found = [data.get(Columns.SOURCE_ID) for data in batch.custom_data or ()]
    return found if any(name is not None for name in found) else []


def _rows(batch: EpisodeBatch) -> list[dict[str, Any]]:
    """One dict per episode, with `source_id` if the source table has its own ids."""
    none, in_tables = (None,) * len(batch), _ids_in_tables(batch)
    columns = {
        "eps_id": batch.ids,
        **({"source_id": in_tables} if in_tables else {}),
        "agent_id": batch.agent_ids or none,
        "module_id": batch.module_ids or none,
        "length": batch.lengths.tolist(),
        "return": batch.returns.tolist(),
        "terminated": batch.terminated.tolist(),
        "truncated": batch.truncated.tolist(),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _described(one: EpisodeBatch) -> dict[str, Any]:
    """Describe a batch of one episode: its row, first and last steps, column statistics, and their means over time."""
    from offline_cli.checking.column_statistics import ColumnsBuilder, means_over_time
    from offline_cli.converting.convert import shown_value
    from offline_cli.trees import flatten

    builder, steps = ColumnsBuilder(), one.num_steps
    builder.add(one)
    trees = {"obs": one.acted_obs(view=True), "actions": one.actions, "rewards": one.rewards, **one.extra}
    leaves = dict(pair for name, tree in trees.items() for pair in flatten(tree, name))
    chosen = sorted({*range(min(SHOWN_STEPS, steps)), *range(max(0, steps - SHOWN_STEPS), steps)})
    columns = builder.as_json()
    return {
        **_rows(one)[0],
        "steps": [{"t": step, **{path: shown_value(leaf[step]) for path, leaf in leaves.items()}} for step in chosen],
        "columns": {
            path: {**figures, "over_time": means_over_time(leaves[path], TIMELINE)} for path, figures in columns.items()
        },
    }
