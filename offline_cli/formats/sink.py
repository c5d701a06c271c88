"""The interface of sinks: a `Sink` of whole episodes, to which `convert --to NAME` writes, and its `SinkKind`.

Sinks of foreign formats lie beside their readers and derive from `ForeignSink`; `converting/sink.py` lists all sinks by name.

Array files name leaves by path: `observations/camera/left`, parts of a Tuple by number. Data that a format cannot hold is
counted (`count_left_out`).
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
"""Options of `convert` that depend on the sink, with their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """Properties of the episodes, and options for their files, known before the first is written."""

    observation_space: Space
    action_space: Space
    action_scale: str  # "env" | "normalized" | "unknown"
    spaces_inferred: bool
    environment: EnvironmentRecord | None
    provenance: Mapping[str, Any]  # sources, their formats, commands
    compression: str
    max_rows_per_file: int | None
    tally: Tally  # for assumptions and dropped data
    identity: Mapping[str, Any]  # equal for equal content, by name; `resume` compares it
    overwrite: bool
    resume: bool
    max_bytes_per_file: int = MAX_BYTES_PER_FILE  # before compression
    meanings: Meanings = NO_MEANINGS  # of columns
    reference: Reference | None = None  # for normalised scores
    temp_dir: str | None = None  # folder for data that does not fit into memory; None: the system's
    base: Base | None = None  # the dataset to append to; only for our own sinks


@dataclass(frozen=True, slots=True)
class Written:
    """The size of a committed output."""

    episodes: int
    steps: int
    files: int
    bytes: int


class Sink(Protocol):
    """Writes whole episodes to one target; leaving its `with` block closes everything.

    Entering starts the write, and raises for a target that may not be replaced. Leaving without `commit` aborts it, so that
    the output does not look complete. Raises OutputExists, StorageError, BadData, UnsupportedSpace.
    """

    @property
    def ids_written(self) -> frozenset[str]:
        """Ids of the complete episodes that `resume` found, which are not written again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    def write(self, batch: EpisodeBatch) -> None:
        """Write whole episodes with new ids; arrays may be buffered and must not be modified afterwards."""

    def rehearse(self, batch: EpisodeBatch) -> None:
        """Dry run: check and count as `write` does, as far as possible without a file."""

    def quarantine(self, rejects: list[Reject]) -> None:
        """Store rejected rows beside the episodes, and clear the list."""

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written | Manifest:
        """Complete the output durably. `assumptions`: counts by kind; `episodes_lost`: None: unknown."""


class ForeignSink:
    """Base of sinks for foreign formats, which cannot resume or store rejected rows."""

    ids_written: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, target: Location, context: SinkContext, name: str) -> None:
        self.target, self.context, self.name = target, context, name
        self.episodes = self.steps = 0  # written

    def said_by_source(self) -> Mapping[str, Any]:
        """The metadata of a source in the same format (`SourceInfo.declared`); empty if there is none."""
        declared = self.context.provenance.get("declared", ())
        return next((one for one in declared if isinstance(one, Mapping) and one.get("format") == self.name), {})

    def count(self, batch: EpisodeBatch) -> None:
        """Count written episodes and steps."""
        self.episodes, self.steps = self.episodes + len(batch), self.steps + batch.num_steps

    def rehearse(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""

    def quarantine(self, rejects: list[Reject]) -> None:
        """See `Sink`. Raises BadData."""
        if rejects:
            what = f"rows were rejected, and {self.name} cannot store them"
            raise BadData(what, where=f"--to {self.name}", fix="use --on-error skip, or --to episodes")


def refuse_existing(target: Location, *, overwrite: bool, resume: bool) -> None:
    """Raise OutputExists if `target` exists, unless it is to be replaced or resumed."""
    if not (overwrite or resume) and target.exists():
        raise OutputExists("the output exists already", where=target.url, fix="give another --out, or --overwrite")


def refuse_folder(target: Location, *, overwrite: bool, resume: bool) -> None:
    """The `check` of sinks that write a folder: raise OutputExists if it exists, because it may hold foreign files."""
    if target.exists():
        raise OutputExists("the output exists already", where=target.url, fix="remove it, or give another --out")


def file_check(magic: bytes, words: str) -> Callable[..., object]:
    """Make the `check` of a sink that writes one file: `overwrite` replaces only a file that starts with `magic`."""

    def check(target: Location, *, overwrite: bool, resume: bool) -> None:
        """Raise OutputExists."""
        if overwrite and target.exists() and (target.is_dir() or target.start(len(magic))[0] != magic):
            raise OutputExists(f"this is not {words}", where=target.url, fix="give another --out, or remove it yourself")
        refuse_existing(target, overwrite=overwrite, resume=False)

    return check


@dataclass(frozen=True, slots=True)
class SinkKind:
    """An output format. Other packages register sinks as entry points of `offline_cli.sinks`; see docs/howto/extend.md."""

    name: str  # value of `--to`
    words: str  # the format, for messages
    open: Callable[[Location, SinkContext], Sink]  # nothing is written before its `with`
    check: Callable[..., object] = refuse_existing  # (target, *, overwrite, resume): raises as entering would
    takes: Collection[str] = ()  # supported names of `OPTIONS`; others raise UsageError
    keeps: str = ""  # which data it keeps and drops, one line for `convert --list-formats`

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise UsageError for a non-default option that the sink does not support."""
        for name, default in OPTIONS.items():
            if options[name] != default and name not in self.takes:
                option = f"--{name.replace('_', '-')}"
                what = f"the sink {self.name!r} does not support {option}"
                raise UsageError(what, where=f"--to {self.name}", fix=f"remove {option}")


# ---- leaves by name ----


def named_leaves(name: str, tree: Tree, tuple_key: str = "{}") -> dict[str, Any]:
    """The leaves of a tree by `/` paths below `name`; `tuple_key`: format of the names of Tuple parts. Raises BadData."""
    if not isinstance(tree, (dict, tuple)):
        return {name: tree}
    parts = tree if isinstance(tree, dict) else {tuple_key.format(at): part for at, part in enumerate(tree)}
    found: dict[str, Any] = {}
    for key, part in parts.items():
        found |= named_leaves(f"{name}/{checked_key(str(key), name)}", part, tuple_key)
    return found


def tree_of_names(leaves: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """Nested dicts from leaves by path. Raises ValueError if one path is a prefix of another, or has an empty part."""
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
    """The first components of the names."""
    return {name.partition("/")[0] for name in names}


def checked_key(key: str, where: str) -> str:
    """Return a Dict key that is valid in a name. Raises BadData for others."""
    if "/" in key or key in ("", "."):
        fix = "rename the key in the recordings, or choose another --to"
        raise BadData(f"the key {key!r} is not valid in this format", where=where, fix=fix)
    return key


# ---- dropped data ----


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
    """Count data of the episodes that the format does not keep. The flags say what it keeps.

    `kept`: custom data keys that it keeps; None: the caller counts custom data.
    """
    if not ids:
        tally.assume("eps-id-not-kept", len(batch))
    if not infos and batch.infos is not None and any(batch.infos):
        tally.drop_column(Columns.INFOS, "the format cannot hold infos")
    for name in () if extra else batch.extra:
        tally.drop_column(name, "the format cannot hold extra model outputs")
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
    """Count recorded final observations that the format does not keep."""
    tally.assume("final-observation-not-kept", int((~batch.final_obs_assumed & (batch.lengths > 0)).sum()))
