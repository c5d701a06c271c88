"""Objects in the manner of RLlib's `InputReader`, whose `next()` gives SampleBatches, as a source (`spec/`, offline data).

`--from python:package.module:CustomInputReader` names a class, or a function as `register_input` takes it; it is called with an
`IOContext`, whose `input_config` holds the paths of the sources as `input_files` and `paths`. Reading ends where `next()`
returns None or raises StopIteration. RLlib's own readers start over at their end: they need `--limit`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import BadConfig, BadData, BadEpisode, OfflineCliError
from offline_cli.formats.reader import OpenContext, Reader
from offline_cli.formats.source import FileSource, Fragments, Origins, Source
from offline_cli.formats.step_rows import END_FLAGS, Keys, SharedIds, StepRows, end_flags, fragments_of_rows, timesteps
from offline_cli.storage.locations import Location
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree, flatten

__all__ = ["IOContext", "Maker", "input_reader"]

_log = logging.getLogger(__name__)
AGENT_INDEX: Final = "agent_index"
PREVIOUS: Final = frozenset({"prev_actions", "prev_rewards"})
NEEDED: Final = (Columns.EPS_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
NUMBERS: Final = frozenset({Columns.REWARDS, Columns.T, *END_FLAGS})
FLAT: Final = NUMBERS | {Columns.EPS_ID, AGENT_INDEX}  # columns of one value a row
NEEDED_ROWS: Final = FLAT | {*NEEDED, Columns.NEXT_OBS, Columns.INFOS}  # of which no row may be missing
NOT_EXTRA: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, AGENT_INDEX, "unroll_id", "type", "count", Columns.SEQ_LENS})


@dataclass(frozen=True, slots=True)
class IOContext:
    """What a reader is made with, by RLlib's names."""

    log_dir: str
    config: Mapping[str, Any]
    worker_index: int = 0
    worker: None = None

    @property
    def input_config(self) -> Mapping[str, Any]:
        """The sources, as `input_files` and `paths`; empty for a writer."""
        found: Mapping[str, Any] = self.config.get("input_config", {})
        return found

    @property
    def output_config(self) -> Mapping[str, Any]:
        """The target, as `path`; empty for a reader."""
        found: Mapping[str, Any] = self.config.get("output_config", {})
        return found

    def default_sampler_input(self) -> None:
        """There is no sampler."""


@dataclass(frozen=True, slots=True)
class Maker:
    """A class or function that the user named, which makes objects in the manner of RLlib's.

    Raises BadConfig for one that cannot be called.
    """

    make: Any  # called with an IOContext
    where: str  # the option that names it
    noun: str  # what it makes, in a word
    base: str  # RLlib's class for that
    method: str  # which such an object has
    record: str  # ours, of which it could have been one

    def __post_init__(self) -> None:
        if not callable(self.make):
            fix = f"name a {self.record}, a class with {self.method}(), or a function that makes such an object"
            raise BadConfig(f"it is {type(self.make).__name__}, which makes no {self.noun}", where=self.where, fix=fix)

    def made(self, doing: str, folder: str, config: Mapping[str, Any]) -> Any:
        """An object with the method. Raises BadConfig for one without it, and as `called` does."""
        found = self.called(doing, lambda: self.make(IOContext(folder, config)))
        if not callable(getattr(found, self.method, None)):
            what = f"it makes {type(found).__name__}, which has no {self.method}()"
            raise BadConfig(what, where=self.where, fix=f"derive it from RLlib's {self.base}, or write a {self.record}")
        return found

    def called(self, doing: str, call: Callable[[], Any]) -> Any:
        """What `call`, of code of the user's, returns. Raises BadData for what it raises, but for our own errors."""
        try:
            return call()
        except OfflineCliError:
            raise
        except Exception as error:
            what = f"{doing} raised {error!r}"
            raise BadData(what, where=self.where, fix="call it by itself, in Python") from error


def input_reader(found: Any, name: str) -> Reader:
    """A `Reader` for a maker of objects with `next()`. Raises BadConfig for one that cannot be called."""
    maker = Maker(found, f"--from {name}", "reader", "InputReader", "next", "Reader")

    def open_files(files: Sequence[Location], context: OpenContext) -> Source:
        return InputReaderSource(files, context.location, maker=maker, name=name)

    return Reader(name, f"what {name} reads", open_files)


@dataclass(slots=True)
class InputReaderSource(FileSource):
    """The batches of an object with `next()`, which is made anew for each reading."""

    format: ClassVar = "input-reader"
    maker: Maker = field(kw_only=True)
    name: str = field(kw_only=True)

    @property
    def size(self) -> int | None:
        """Unknown."""
        return None

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Runs of rows as the batches have them."""
        ids = SharedIds()
        last: dict[str | None, tuple[str, ...]] = {}  # by policy: the key of its last row, where that did not end its episode
        lost: dict[str | None, str] = {}  # by policy: where rows were lost right before its next row
        begin: tuple[Any, ...] | None = None  # what the first batch holds; () once its return has been noted
        for number, batch in enumerate(self._batches()):
            where = f"{self.name} batch {number}"
            for policy, given in _policies(batch).items():
                try:
                    columns = _columns(given, where)
                    if not len(columns[Columns.REWARDS]):
                        tally.assume("empty-batch")
                        continue
                    rows = _rows(columns, policy, ids, last, tally, where)
                except BadData as error:
                    last.pop(policy, None)
                    lost[policy] = where
                    rejects.add(error, rows=1)
                    rejects.lose_episodes(Lost.UNREADABLE)
                    continue
                if policy in lost and rows.t is None:
                    rejects.lose(rows.keys.eps_ids[int(rows.keys.code[0])], lost[policy])
                lost.pop(policy, None)
                content = rows.keys.eps_ids, rows.rewards.tobytes()
                if content == begin:  # as RLlib's readers do forever
                    _log.warning("note: %s gives its first batch again, and may never end: --limit ends it", self.name)
                    begin = ()
                begin = content if begin is None else begin
                tally.rows_in += len(rows.rewards)
                self.done += len(rows.rewards)
                found, first = fragments_of_rows(rows, tally)
                numbers = np.arange(len(rows.rewards))
                yield Fragments(found, Origins.of_rows((where,), np.zeros_like(numbers), numbers, first))

    def _batches(self) -> Iterator[Any]:
        self.done = 0
        files = [file.url for file in self.files]
        config = {"input": self.name, "input_config": {"input_files": files, "paths": files}}
        reader = self.maker.made(f"making {self.name}", ".", config)
        for number in count():
            batch = self.maker.called(f"next() number {number} of {self.name}", lambda: _next(reader))
            if batch is None:
                return
            yield batch


def _next(reader: Any) -> Any:
    try:
        return reader.next()
    except StopIteration:
        return None


def _policies(batch: Any) -> Mapping[str | None, Any]:
    """The batches of a MultiAgentBatch, or of a dict as its JSON is, by policy; any other batch by itself."""
    found = getattr(batch, "policy_batches", None)
    if found is None and isinstance(batch, Mapping):
        found = batch.get("policy_batches")
    return found if isinstance(found, Mapping) else {None: batch}


def _columns(batch: Any, where: str) -> dict[str, Any]:
    """The columns of a batch as trees of arrays, infos as they are. Raises BadEpisode where no steps can be read."""
    if not isinstance(batch, Mapping):
        raise _bad(f"next() gave {type(batch).__name__}, which has no columns", where)
    given = {name: value for name, value in dict(batch).items() if value is not None}
    missing = [name for name in NEEDED if name not in given]
    if missing:
        raise _bad(f"a batch without {', '.join(missing)}", where)
    columns: dict[str, Any] = {}
    for name, value in given.items():
        try:
            columns[name] = value if name == Columns.INFOS else _tree(value)
        except ValueError as error:
            raise _bad(f"column {name} is no array: {error}", where) from error
    _check(columns, where)
    return columns


def _check(columns: Mapping[str, Any], where: str) -> None:
    for name in FLAT & columns.keys():
        leaf = columns[name]
        if (
            not isinstance(leaf, np.ndarray)
            or leaf.ndim != 1
            or leaf.dtype.kind not in ("biuf" if name in NUMBERS else "biufUO")
        ):
            said = f"{leaf.dtype}{list(leaf.shape)}" if isinstance(leaf, np.ndarray) else type(leaf).__name__
            raise _bad(f"column {name} is {said}, not one {'number' if name in NUMBERS else 'number or text'} a row", where)
    rows = len(columns[Columns.REWARDS])
    for name in sorted(NEEDED_ROWS & columns.keys()):
        if not (len(columns[name]) == rows if name == Columns.INFOS else _has_rows(columns[name], rows)):
            raise _bad(f"column {name} has other rows than the {rows} rewards", where)
    for name in (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS):
        if any(leaf.dtype.hasobject for _, leaf in flatten(columns.get(name, ()))):
            raise _bad(f"column {name} holds Python objects, not numbers", where)
    lengths = columns.get(Columns.SEQ_LENS)
    if isinstance(lengths, np.ndarray) and lengths.dtype.kind in "iu" and lengths.sum() < rows:
        raise _bad(
            f"{rows} rows, of which {lengths.sum()} are steps by {Columns.SEQ_LENS}, and the others pad sequences", where
        )
    seen, after = (_shapes(columns.get(name)) for name in (Columns.OBS, Columns.NEXT_OBS))
    if Columns.NEXT_OBS in columns and seen != after:
        raise _bad(f"obs are {seen} and new_obs are {after}", where)


def _shapes(tree: Tree) -> dict[str, tuple[int, ...]]:
    return {} if tree is None else {path: leaf.shape[1:] for path, leaf in flatten(tree, "each")}


def _bad(what: str, where: str) -> BadEpisode:
    return BadEpisode(what, where=where, fix="have next() give batches: columns by name, with one row a step")


def _rows(
    columns: Mapping[str, Any],
    policy: str | None,
    ids: SharedIds,
    last: dict[str | None, tuple[str, ...]],
    tally: Tally,
    where: str,
) -> StepRows:
    """The rows of one batch of one policy, at least one. Raises BadEpisode for a wrong `t`."""
    rewards = columns[Columns.REWARDS].astype(np.float64)
    per_step = {name: tree for name, tree in columns.items() if name != Columns.INFOS and _has_rows(tree, len(rewards))}
    for name in columns.keys() - per_step.keys() - {Columns.INFOS}:
        tally.drop_column(name, "not one row a step")
    for name in sorted(PREVIOUS & per_step.keys()):
        tally.drop_column(name, "of the step before")
    terminateds, truncateds = end_flags(per_step, len(rewards), tally)
    keys = ids.named(_keys(per_step, policy))
    key = [(keys.eps_ids[code], str(keys.agent_ids[code])) for code in (int(keys.code[0]), int(keys.code[-1]))]
    follows = last.pop(policy, None) == key[0]
    if not (terminateds[-1] or truncateds[-1]):
        last[policy] = key[1]
    t = per_step.get(Columns.T)
    return StepRows(
        keys=keys,
        obs=per_step[Columns.OBS],
        next_obs=per_step.get(Columns.NEXT_OBS),
        actions=per_step[Columns.ACTIONS],
        rewards=rewards,
        terminateds=terminateds,
        truncateds=truncateds,
        t=None if t is None else timesteps(t, where=lambda row: f"{where} row {row}"),
        extra={name: tree for name, tree in per_step.items() if name not in NOT_EXTRA | PREVIOUS and _is_numeric(tree)},
        infos=_infos(columns.get(Columns.INFOS)),
        reset_infos=None,
        file=np.zeros(len(rewards), np.int64),
        follows=follows,
    )


def _tree(value: Any) -> Tree:
    if isinstance(value, dict):
        return {str(key): _tree(part) for key, part in value.items()}
    return tuple(map(_tree, value)) if isinstance(value, tuple) else np.asarray(value)


def _has_rows(tree: Tree, rows: int) -> bool:
    return all(leaf.ndim > 0 and len(leaf) == rows for _, leaf in flatten(tree))


def _is_numeric(tree: Tree) -> bool:
    return all(leaf.dtype.kind in "biuf" for _, leaf in flatten(tree))


def _keys(columns: Mapping[str, Any], policy: str | None) -> Keys:
    eps_id: NDArray[Any] = columns[Columns.EPS_ID]
    agents = columns.get(AGENT_INDEX, np.zeros(len(eps_id), np.int64))
    codes: dict[tuple[str, str], int] = {}
    names = zip(map(str, eps_id.tolist()), map(str, agents.tolist()), strict=True)
    code = [codes.setdefault(key, len(codes)) for key in names]
    several = len({agent for _, agent in codes}) > 1
    return Keys(
        np.array(code, np.int64),
        tuple(eps for eps, _ in codes),
        tuple(agent if several else None for _, agent in codes),
        (policy,) * len(codes),
    )


def _infos(infos: Any) -> list[Mapping[str, Any]] | None:
    found: list[Mapping[str, Any]] = [info if isinstance(info, dict) else {} for info in ([] if infos is None else infos)]
    return found if any(found) else None
