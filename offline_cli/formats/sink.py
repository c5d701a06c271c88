"""The interface of every sink: a `Sink` of whole episodes, which `convert --to NAME` writes into, and its `SinkKind`.

A foreign format has its sink beside its reader, derived from `ForeignSink`; `converting/sink.py` lists all sinks by name.

Files of arrays name leaves by path: `observations/camera/left`, parts of a Tuple by number. What a format has no place for
is counted (`count_left_out`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol, Self

import numpy as np

from offline_cli.choices import MAX_BYTES_PER_FILE
from offline_cli.columns import Columns
from offline_cli.datasets.manifest import EnvironmentRecord, Manifest, Reference
from offline_cli.datasets.target_folder import Base
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OutputExists, UsageError
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import Reject, Tally
from offline_cli.trees import Tree

OPTIONS: Final[Mapping[str, Any]] = {
    "append": False,
    "compression": None,
    "max_bytes_per_file": MAX_BYTES_PER_FILE,
    "max_rows_per_file": None,
    "overwrite": False,
    "resume": False,
}
"""Of `convert`, those that a sink takes or does not, with their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What is known of the episodes, and required of their files, before the first is written."""

    observation_space: Space
    action_space: Space
    action_scale: str  # "env" | "normalized" | "unknown"
    spaces_inferred: bool
    environment: EnvironmentRecord | None
    provenance: Mapping[str, Any]  # sources, their formats, commands
    compression: str
    max_rows_per_file: int | None
    tally: Tally  # for what the sink has to assume or drop
    identity: Mapping[str, Any]  # the same for the same content: what `resume` compares, by name
    overwrite: bool
    resume: bool
    max_bytes_per_file: int = MAX_BYTES_PER_FILE  # before compression
    meanings: Meanings = NO_MEANINGS  # of columns
    reference: Reference | None = None  # of normalised scores
    temp_dir: str | None = None  # where bytes wait that do not fit into memory; None: the system's
    base: Base | None = None  # the dataset that is added to; only our own sinks get one


@dataclass(frozen=True, slots=True)
class Written:
    """What a sink has committed."""

    episodes: int
    steps: int
    files: int
    bytes: int


class Sink(Protocol):
    """Whole episodes on their way to one place; what it opens is closed by the end of its `with`.

    Entering begins: it raises for what must not be touched. Leaving without `commit` aborts: then nothing looks complete.
    Raises OutputExists, StorageError, BadData, UnsupportedSpace.
    """

    @property
    def ids_written(self) -> frozenset[str]:
        """Ids of the episodes that `resume` found whole, which are not written again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    def write(self, batch: EpisodeBatch) -> None:
        """Take one or more whole episodes with new ids; their arrays may wait here, and must not change afterwards."""

    def rehearse(self, batch: EpisodeBatch) -> None:
        """For a dry run: raise and count as `write` would, as far as that shows without a file, and write nothing."""

    def quarantine(self, rejects: list[Reject]) -> None:
        """Keep rows that were set aside beside the episodes, and empty the list."""

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written | Manifest:
        """Make what was written whole and durable. `assumptions`: counts by kind; `episodes_lost`: None: not known."""


class ForeignSink:
    """What sinks of foreign formats share: nothing is resumed, and rows that were set aside have no place."""

    ids_written: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, target: Location, context: SinkContext, name: str) -> None:
        self.target, self.context, self.name = target, context, name
        self.episodes = self.steps = 0  # written

    def said_by_source(self) -> Mapping[str, Any]:
        """What a source of the same format said of the whole (`SourceInfo.declared`); empty without one."""
        declared = self.context.provenance.get("declared", ())
        return next((one for one in declared if isinstance(one, Mapping) and one.get("format") == self.name), {})

    def count(self, batch: EpisodeBatch) -> None:
        """Count what was written."""
        self.episodes, self.steps = self.episodes + len(batch), self.steps + batch.num_steps

    def rehearse(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""

    def quarantine(self, rejects: list[Reject]) -> None:
        """See `Sink`. Raises BadData."""
        if rejects:
            what = f"rows were set aside, and {self.name} has no place for them"
            raise BadData(what, where=f"--to {self.name}", fix="--on-error skip, or --to episodes")


def refuse_existing(target: Location, *, overwrite: bool, resume: bool) -> None:
    """Raise OutputExists where something is at `target`, unless it is to be replaced or resumed."""
    if not (overwrite or resume) and target.exists():
        raise OutputExists("something is here already", where=target.url, fix="give another --out, or --overwrite")


def refuse_folder(target: Location, *, overwrite: bool, resume: bool) -> None:
    """The `check` of a sink of a folder: raise OutputExists where something is, for it may hold files of others."""
    if target.exists():
        raise OutputExists("something is here already", where=target.url, fix="remove it, or give another --out")


def file_check(magic: bytes, words: str) -> Callable[..., object]:
    """The `check` of a sink of one file: with `overwrite` a file is replaced that begins with `magic`, and no other."""

    def check(target: Location, *, overwrite: bool, resume: bool) -> None:
        """Raise OutputExists."""
        if overwrite and target.exists() and (target.is_dir() or target.start(len(magic))[0] != magic):
            raise OutputExists(f"this is not {words}", where=target.url, fix="give another --out, or remove it yourself")
        refuse_existing(target, overwrite=overwrite, resume=False)

    return check


@dataclass(frozen=True, slots=True)
class SinkKind:
    """One format to write. Other packages register theirs as entry points of `offline_cli.sinks`; see docs/extending.md."""

    name: str  # as `--to` takes it
    words: str  # what it writes, for messages
    open: Callable[[Location, SinkContext], Sink]  # nothing is touched before its `with`
    check: Callable[..., object] = refuse_existing  # (target, *, overwrite, resume): raises what entering would raise
    takes: Collection[str] = ()  # those of `OPTIONS` that it regards; others are refused
    keeps: str = ""  # what of an episode its files hold and what not, in a line of `convert --list-formats`

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise UsageError for an option that is not at its default, and that the sink does not take."""
        for name, default in OPTIONS.items():
            if options[name] != default and name not in self.takes:
                option = f"--{name.replace('_', '-')}"
                what = f"{option} with the sink {self.name!r}, which does not take it"
                raise UsageError(what, where=f"--to {self.name}", fix=f"leave out {option}")


# ---- leaves by name ----


def named_leaves(name: str, tree: Tree, tuple_key: str = "{}") -> dict[str, Any]:
    """The leaves of a tree by `/` paths below `name`; `tuple_key`: what a part of a Tuple is called. Raises BadData."""
    if not isinstance(tree, (dict, tuple)):
        return {name: tree}
    parts = tree if isinstance(tree, dict) else {tuple_key.format(at): part for at, part in enumerate(tree)}
    found: dict[str, Any] = {}
    for key, part in parts.items():
        found |= named_leaves(f"{name}/{checked_key(str(key), name)}", part, tuple_key)
    return found


def tree_of_names(leaves: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """Nested dicts of leaves by path. Raises ValueError where a path goes through another one, or has an empty part."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *above, name = path.split(separator)
        inner: Any = tree
        for key in above:
            inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or name in inner or not all((*above, name)):
            raise ValueError(path)
        inner[name] = leaf
    return tree


def heads(names: Iterable[str]) -> set[str]:
    """The first parts of the names."""
    return {name.partition("/")[0] for name in names}


def checked_key(key: str, where: str) -> str:
    """A key of a Dict that can be part of a name. Raises BadData."""
    if "/" in key or key in ("", "."):
        fix = "rename the key in the recordings, or choose another --to"
        raise BadData(f"a key that cannot be part of a name in this format: {key!r}", where=where, fix=fix)
    return key


# ---- what is left out ----


def count_left_out(
    batch: EpisodeBatch,
    tally: Tally,
    *,
    kept: Collection[str] | None = (),
    ids: bool = False,
    infos: bool = False,
    agents: bool = False,
    extra: bool = True,
) -> None:
    """Count, and name, what the episodes have and the format does not keep, which the flags say.

    `kept`: keys of custom data that it keeps; None: it counts these itself.
    """
    if not ids:
        tally.assume("eps-id-not-kept", len(batch))
    if not infos and batch.infos is not None and any(batch.infos):
        tally.drop_column(Columns.INFOS, "the format has no place for infos")
    for name in () if extra else batch.extra:
        tally.drop_column(name, "the format has no place for extra model outputs")
    if kept is not None and batch.custom_data is not None:
        known = {Columns.SOURCE_ID, Columns.FINAL_OBS_ASSUMED, *kept}
        tally.assume("custom-data-not-kept", sum(not set(data) <= known for data in batch.custom_data))
    if batch.clock is not None:
        tally.assume("clock-not-kept", int((~np.isnan(batch.clock).all(axis=1)).sum()))
    lost = [batch.multi_agent_ids, *(() if agents else (batch.agent_ids, batch.module_ids))]
    has_name = [np.array([name is not None for name in names]) for names in lost if names is not None]
    if has_name:
        tally.assume("agent-not-kept", int(np.any(has_name, axis=0).sum()))


def count_finals(batch: EpisodeBatch, tally: Tally) -> None:
    """Count the final observations that are left out, but for those that nobody recorded."""
    tally.assume("final-observation-not-kept", int((~batch.final_obs_assumed & (batch.lengths > 0)).sum()))
