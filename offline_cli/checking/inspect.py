"""What data holds, in figures: from the manifest of a dataset, else by reading it all; unmet expectations raise.

`inspect` answers for every source that the readers know. A foreign source is read as `convert` would read it, so that the
figures are those of the dataset it would become: fragments joined, duplicates dropped, and each of these counted.

For a dataset on this machine the manifest is all that is read, and of the shards it lists, that they are there with their
sizes, which takes 10 ms for 10,000. Readers, storage clients and pyarrow, which take 0.5 s to import, stay away: they are
imported where they are needed. What a manifest does not say is read from the shards where it is
asked for: histograms of columns, episodes by agent and module (`deep`), single episodes (`episode`, `head`).
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from offline_cli.checked_keywords import checked
from offline_cli.choices import SOURCE_FORMAT, TABLE_MEMORY_LIMIT, Count, EpisodeEnds
from offline_cli.datasets.file_names import DATA, MANIFEST, WRITING
from offline_cli.datasets.manifest import Manifest
from offline_cli.errors import BadData, OfflineCliError, UsageError
from offline_cli.json_documents import Expectations
from offline_cli.meanings import Meanings
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.spaces import Space, describe, space_to_json
from offline_cli.stop_signals import check
from offline_cli.storage.local_files import SIGNS, read_plain
from offline_cli.tally import KINDS

if TYPE_CHECKING:
    from offline_cli.converting.reading import EpisodeStream
    from offline_cli.datasets.statistics import SpreadBuilder, StatisticsBuilder
    from offline_cli.episodes.batch import EpisodeBatch
    from offline_cli.formats.source import Source
    from offline_cli.storage.locations import Sources

ABOUT_READING: Final = (  # what a manifest alone does not answer
    *("from_", "mapping", "rows_as_episodes", "episode_ends", "deep", "episode", "head"),
    *("temp_dir", "memory_limit", "storage_options"),
)
SHOWN_STEPS: Final = 5  # of an episode, at either end
TIMELINE: Final = 32  # parts of an episode whose means are shown

__all__ = ["Inspection", "inspect"]

SizeOf = Callable[[str], int | None]  # bytes of a file by its path in the dataset; None: there is no such file


@dataclass(frozen=True, slots=True)
class Inspection:
    """Figures of one or more sources taken together.

    `truncated` counts the flag as it is stored in a dataset. `unfinished` counts episodes that have it only because their
    recording broke off: they are among the truncated ones. A dataset has the same figures as the source it was made from.
    """

    format: str  # of the source: episodes, columns, rllib-episodes, rllib-columns, sample-batch; joined by ", "
    sources: tuple[str, ...]
    episodes: int
    steps: int
    terminated: int  # episodes that their task ended
    truncated: int
    unfinished: int
    observation_space: Space | None
    action_space: Space | None
    spaces_inferred: bool
    action_scale: str  # "env" | "normalized" | "unknown"
    environment: str | None
    returns: Mapping[str, Any]  # mean, std, min, max, quantiles by percent; undiscounted sums of rewards
    length: Mapping[str, Any]  # the same, in steps
    columns: Mapping[str, Any]  # the same without quantiles, by column
    meanings: Meanings  # of columns: names, categories and units, as far as the source says them
    duplicates_dropped: int
    rows_quarantined: int
    episodes_lost: int | None  # that were in the source and are not among these; None: not in the manifest
    assumptions: Mapping[str, int]
    dropped_columns: tuple[str, ...]  # columns left out, by name; unknown of a dataset
    dropped_reasons: Mapping[str, str]  # by the same names
    modules: Mapping[str, int] | None  # episodes by module id, where they have one; None: not in the manifest
    complete: bool  # whether all that was asked for is in it; False: its writer was stopped, and committed what was whole
    from_manifest: bool  # False: every episode has been read for the figures above
    agents: Mapping[str, int] | None = None  # episodes by agent id, as `modules`
    histograms: Mapping[str, Any] | None = None  # of return, length and columns: see Spread.as_json; None: steps were not read
    first_episodes: Sequence[Mapping[str, Any]] | None = None  # as many as were asked for: id, length, return, how it ended
    shown_episode: Mapping[str, Any] | None = None  # the one that was asked for: the same, its steps, its columns over time
    shards: int | None = None  # that the manifest of a dataset lists; None: it is none, or several sources
    wrong_shards: Sequence[str] | None = None  # in words: those missing, or of another size; None: files were not looked at

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`; spaces as JSON, and as one line of text beside it."""
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
            "wrong_shards": None if self.wrong_shards is None else list(self.wrong_shards),
            "assumptions": dict(sorted(self.assumptions.items())),
        }


KEYS: Final = (
    *("return" if name == "returns" else name for name in Inspection.__slots__),
    *("observation_space_text", "action_space_text"),
)
"""Those of `as_dict`."""
COUNTS: Final = ("assumptions", "modules", "agents")  # in which what is not listed was counted 0 times


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
    """Figures of `sources`, taken together.

    `expect` names values by the keys of `as_dict`, with dots for what is nested (`return.mean`); `{"steps>=": 100}` and
    `{"steps<=": 100}` are bounds. A number is that of an element (`columns.obs.max.0`); a list is compared element by
    element. A kind of `assumptions` that was not counted is 0. Raises TargetNotMet, naming all that differ, UsageError for
    unknown keys, kinds and orders, and for an episode that is not there, and what `read_episodes` raises.
    """
    options = dict(locals())
    expected = Expectations.of(options["expect"] or {}, KEYS, counts=COUNTS, kinds={"assumptions": KINDS})
    found = _of_local_dataset(sources, options) or _of_sources(sources, options, on_progress)
    expected.check(found.as_dict(), where=", ".join(found.sources))
    return found


def _of_local_dataset(sources: Sources, options: Mapping[str, Any]) -> Inspection | None:
    """Figures of one committed dataset in a folder of this machine, of which nothing else is said; None for all other sources,
    damaged manifests among them: opening them says what is wrong.
    """
    listed = [sources] if isinstance(sources, str | os.PathLike) else sources
    if not isinstance(listed, list | tuple) or len(listed) != 1 or not isinstance(listed[0], str | os.PathLike):
        return None
    folder = os.fspath(listed[0])
    if not folder or folder.startswith("~") or any(sign in folder for sign in SIGNS):
        return None
    if any(options[name] not in (None, False, SOURCE_FORMAT, TABLE_MEMORY_LIMIT) for name in ABOUT_READING):
        return None
    place = f"{folder.rstrip('/')}/{MANIFEST}"
    try:
        if os.path.exists(os.path.join(folder, WRITING)):
            return None
        manifest = Manifest.from_bytes(read_plain(place, shown=place), where=place)
    except (OSError, ValueError, OfflineCliError):  # ValueError: of a path with what no path can hold
        return None
    is_gated = bool(options["expect"])
    wrong = _looked_at(manifest, lambda: partial(_size, folder), is_local=True, is_gated=is_gated, where=folder)
    return replace(_from_manifest(folder, manifest), wrong_shards=wrong)


def _size(folder: str, path: str) -> int | None:
    try:
        found = os.stat(os.path.join(folder, path))
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _sizes_of(dataset: Any) -> dict[str, int]:
    """Bytes of the files of a dataset, by path below it."""
    below = len(dataset.location.path.rstrip("/")) + 1
    return {file.path[below:]: file.size() for file in dataset.location.join(DATA).files()}


def _wrong_shards(manifest: Manifest, size_of: SizeOf) -> Iterator[str]:
    """Shards that are not there, or of another size, as text."""
    for shard in manifest.shards:
        if (size := size_of(shard.path)) != shard.bytes:
            yield f"{shard.path} is missing" if size is None else f"{shard.path} has {size} bytes, not {shard.bytes}"


def _looked_at(
    manifest: Manifest, sizes: Callable[[], SizeOf], *, is_local: bool, is_gated: bool, where: str
) -> tuple[str, ...] | None:
    """`_wrong_shards`; None: nobody looked, because it would ask a remote storage.

    Raises BadData, naming all, under a gate (`is_gated`), which always looks.
    """
    if not (is_gated or is_local):
        return None
    wrong = tuple(_wrong_shards(manifest, sizes()))
    if wrong and is_gated:
        fix = "restore the files from a copy, or see what `offline-cli repair` can keep"
        raise BadData.of(wrong, where=where, fix=fix)
    return wrong


def _of_sources(sources: Sources, options: Mapping[str, Any], on_progress: OnProgress) -> Inspection:
    """Figures of any sources: of one dataset from its manifest, else by reading them."""
    from offline_cli.converting.reading import read_opened
    from offline_cli.datasets.statistics import SpreadBuilder, StatisticsBuilder
    from offline_cli.formats.opening import open_sources
    from offline_cli.formats.tables import TableOptions

    tables = TableOptions.of(options)
    opened = open_sources(sources, from_=options["from_"], tables=tables, storage_options=options["storage_options"])
    manifest = opened[0].info.manifest if len(opened) == 1 else None
    reads_all = manifest is None or options["deep"]
    lacks_figures = manifest is not None and options["deep"] and not manifest.statistics["columns"]
    look = _CloserLook(
        options["head"],
        options["episode"],
        histograms=SpreadBuilder() if reads_all else None,
        figures=StatisticsBuilder() if lacks_figures else None,
    )
    if manifest is not None:
        dataset, where = cast(Any, opened[0]).dataset, opened[0].info.location
        is_local, is_gated = dataset.location.is_local, bool(options["expect"])
        wrong = _looked_at(manifest, lambda: _sizes_of(dataset).get, is_local=is_local, is_gated=is_gated, where=where)
        _look_at_dataset(opened[0], look, on_progress)
        found = look.added_to(_from_manifest(where, manifest))
        return replace(found, wrong_shards=() if wrong is None and reads_all else wrong)
    with read_opened(opened, on_error=options["on_error"], memory_limit=tables.memory_limit, on_progress=on_progress) as stream:
        return look.added_to(_by_reading(stream, look))


def _look_at_dataset(source: Source, look: _CloserLook, on_progress: OnProgress) -> None:
    """Read as much of one dataset of ours as is needed."""
    from offline_cli.tally import Rejects, Tally

    with closing(source):
        for part in () if look.is_done else source.fragments(Tally(), Rejects()):
            check()
            look.add(part.batch)
            on_progress(Progress("reading", source.done, source.size, source.unit))
            if look.is_done:
                return


def _from_manifest(location: str, manifest: Manifest) -> Inspection:
    counts, statistics = manifest.counts, manifest.statistics
    return Inspection(
        format=manifest.format,
        sources=(location,),
        episodes=counts.episodes,
        steps=counts.steps,
        terminated=counts.terminated,
        truncated=counts.truncated,
        unfinished=counts.unfinished,
        observation_space=manifest.observation_space,
        action_space=manifest.action_space,
        spaces_inferred=manifest.spaces_inferred,
        action_scale=manifest.action_scale,
        environment=manifest.environment.id if manifest.environment else None,
        returns=statistics["return"],
        length=statistics["length"],
        columns=statistics["columns"],
        meanings=manifest.meanings,
        duplicates_dropped=0,
        rows_quarantined=0,
        episodes_lost=manifest.episodes_lost,
        assumptions=manifest.assumptions,
        dropped_columns=(),
        dropped_reasons={},
        modules=None,
        complete=manifest.complete,
        from_manifest=True,
        shards=len(manifest.shards),
    )


def _by_reading(stream: EpisodeStream, look: _CloserLook) -> Inspection:
    from offline_cli.datasets.statistics import StatisticsBuilder

    builder = StatisticsBuilder()
    for batch in stream:
        builder.add(batch)
        look.add(batch)
    statistics = builder.as_json()
    return Inspection(
        format=", ".join(dict.fromkeys(stream.formats)),
        sources=tuple(stream.locations),
        episodes=builder.episodes,
        steps=builder.steps,
        terminated=builder.terminated,
        truncated=builder.truncated,
        unfinished=builder.unfinished_with(stream.tally.assumptions),
        observation_space=stream.observation_space,
        action_space=stream.action_space,
        spaces_inferred=stream.spaces_inferred,
        action_scale=stream.action_scale,
        environment=stream.environment_id,
        returns=statistics["return"],
        length=statistics["length"],
        columns=statistics["columns"],
        meanings=stream.meanings,
        duplicates_dropped=stream.tally.duplicates_dropped,
        rows_quarantined=stream.rejects.count,
        episodes_lost=stream.episodes_lost,
        assumptions={**stream.tally.assumptions, **stream.lost_by_reason},
        dropped_columns=tuple(stream.tally.dropped_columns),
        dropped_reasons=dict(stream.tally.dropped_columns),
        modules={},
        complete=stream.complete,
        from_manifest=False,
    )


# ---- what the steps are read for ----


@dataclass(slots=True)
class _CloserLook:
    """What is kept of the batches that pass by."""

    head: int | None  # so many first episodes
    episode: str | None  # the one of this id, or of this id in the table that it is from
    histograms: SpreadBuilder | None  # None: no batch is wanted for them, nor for agents and modules
    figures: StatisticsBuilder | None = None  # of columns, where the manifest has none
    rows: list[dict[str, Any]] = field(default_factory=list)
    found: dict[str, Any] | None = None
    agents: Counter[str] = field(default_factory=Counter)
    modules: Counter[str] = field(default_factory=Counter)

    @property
    def is_done(self) -> bool:
        """Whether no further batch can change anything."""
        are_found = len(self.rows) >= (self.head or 0) and (self.episode is None or self.found is not None)
        return are_found and self.histograms is None

    def add(self, batch: EpisodeBatch) -> None:
        """Take what is wanted of `batch`."""
        if self.episode is not None and self.found is None:
            ids = batch.ids if self.episode in batch.ids else _ids_in_tables(batch)
            if self.episode in ids:
                number = ids.index(self.episode)
                self.found = _described(batch.select(slice(number, number + 1)))
        if len(self.rows) < (self.head or 0):
            self.rows += _rows(batch.select(slice(0, (self.head or 0) - len(self.rows))))
        if self.figures is not None:
            self.figures.add(batch)
        if self.histograms is not None:
            self.histograms.add(batch)
            self.agents.update(name for name in batch.agent_ids or () if name is not None)
            self.modules.update(name for name in batch.module_ids or () if name is not None)

    def added_to(self, found: Inspection) -> Inspection:
        """`found` with all this. Raises UsageError where the episode that was asked for is not there."""
        if self.episode is not None and self.found is None:
            fix = "offline-cli inspect SRC --head 20 lists ids; the id that an episode has in its table is taken too"
            raise UsageError(f"no episode is called {self.episode!r}", where=", ".join(found.sources), fix=fix)
        if self.figures is not None:
            found = replace(found, columns=self.figures.as_json()["columns"])
        if self.histograms is not None:
            found = replace(found, agents=dict(self.agents), modules=dict(self.modules), histograms=self.histograms.as_json())
        return replace(found, shown_episode=self.found, first_episodes=None if self.head is None else self.rows)


def _ids_in_tables(batch: EpisodeBatch) -> list[Any]:
    """(E,) the ids that episodes have in the table that they are from, or None; empty where none has one."""
    from offline_cli.columns import Columns

    found = [data.get(Columns.SOURCE_ID) for data in batch.custom_data or ()]
    return found if any(name is not None for name in found) else []


def _rows(batch: EpisodeBatch) -> list[dict[str, Any]]:
    """Each episode in a line; `source_id` where the table that they are from has ids of its own."""
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
    """A batch of one episode: its line, its first and last steps, figures of its columns, and their means over time."""
    from offline_cli.converting.convert import shown_value
    from offline_cli.datasets.statistics import StatisticsBuilder, means_over_time
    from offline_cli.trees import flatten

    builder, steps = StatisticsBuilder(), one.num_steps
    builder.add(one)
    trees = {"obs": one.acted_obs(view=True), "actions": one.actions, "rewards": one.rewards, **one.extra}
    leaves = dict(pair for name, tree in trees.items() for pair in flatten(tree, name))
    chosen = sorted({*range(min(SHOWN_STEPS, steps)), *range(max(0, steps - SHOWN_STEPS), steps)})
    columns = builder.as_json()["columns"]
    return {
        **_rows(one)[0],
        "steps": [{"t": step, **{path: shown_value(leaf[step]) for path, leaf in leaves.items()}} for step in chosen],
        "columns": {
            path: {**figures, "over_time": means_over_time(leaves[path], TIMELINE)} for path, figures in columns.items()
        },
    }
