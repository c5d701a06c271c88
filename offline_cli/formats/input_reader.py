"""Objects in the manner of RLlib's `InputReader`, whose `next()` gives SampleBatches, as a source (`spec/`, offline data).

`--from python:package.module:CustomInputReader` names a class, or a function as `register_input` takes it; it is called with an
`IOContext`, whose `input_config` holds the paths of the sources as `input_files` and `paths`. Reading ends where `next()`
returns None or raises StopIteration. RLlib's own readers begin again at their end: they need `--limit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import BadConfig, BadData, BadEpisode, OfflineCliError
from offline_cli.formats.agents import SharedIds
from offline_cli.formats.end_flags import END_FLAGS, end_flags
from offline_cli.formats.file_source import FileSource
from offline_cli.formats.reader import OpenContext, Reader
from offline_cli.formats.source import Fragments, Origins, Source
from offline_cli.formats.step_rows import Keys, StepRows, fragments_of_rows, timesteps
from offline_cli.storage.locations import Location
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree, flatten

__all__ = ["IOContext", "input_reader"]

AGENT_INDEX: Final = "agent_index"
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
        """The sources, as `input_files` and `paths`."""
        found: Mapping[str, Any] = self.config["input_config"]
        return found

    @property
    def default_sampler_input(self) -> None:
        """There is no sampler."""


def input_reader(maker: Any, name: str) -> Reader:
    """A `Reader` for what makes objects with `next()`. Raises BadConfig for what cannot be called."""
    if not callable(maker):
        fix = "name a Reader, a class with next(), or a function that makes such an object"
        raise BadConfig(f"it is {type(maker).__name__}, and makes no reader", where=f"--from {name}", fix=fix)

    def open_files(files: Sequence[Location], context: OpenContext) -> Source:
        return InputReaderSource(files, context.location, maker=maker, name=name)

    return Reader(name, f"what {name} reads", open_files)


@dataclass(slots=True)
class InputReaderSource(FileSource):
    """The batches of an object with `next()`, which is made anew for each reading."""

    format: ClassVar = "input-reader"
    maker: Callable[[IOContext], Any] = field(kw_only=True)
    name: str = field(kw_only=True)

    @property
    def size(self) -> int | None:
        """Nobody knows."""
        return None

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Runs of rows as the batches have them."""
        ids = SharedIds()
        last: dict[str | None, tuple[str, ...]] = {}  # by policy: the key of its last row, where that did not end its episode
        for number, batch in enumerate(self._batches()):
            where = f"{self.name} batch {number}"
            policies = getattr(batch, "policy_batches", None) or {None: batch}
            for policy, columns in policies.items():
                try:
                    rows = _rows(columns, policy, ids, last, tally, where)
                except BadData as error:
                    rejects.add(error, rows=1)
                    rejects.lose_episodes(Lost.UNREADABLE)
                    continue
                tally.rows_in += len(rows.rewards)
                self.done += len(rows.rewards)
                found, first = fragments_of_rows(rows, tally)
                yield Fragments(found, Origins((where,), np.zeros(len(first), np.int64), first))

    def _batches(self) -> Iterator[Any]:
        self.done = 0
        files = [file.url for file in self.files]
        config = {"input": self.name, "input_config": {"input_files": files, "paths": files}}
        reader = self._called(f"making {self.name}", lambda: self.maker(IOContext(".", config)))
        if not callable(getattr(reader, "next", None)):
            what = f"it makes {type(reader).__name__}, which has no next()"
            raise BadConfig(what, where=f"--from {self.name}", fix="derive it from RLlib's InputReader, or write a Reader")
        for number in count():
            batch = self._called(f"next() number {number} of {self.name}", lambda: _next(reader))
            if batch is None:
                return
            yield batch

    def _called(self, doing: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except OfflineCliError:
            raise
        except Exception as error:
            fix = "call it by itself, in Python"
            raise BadData(f"{doing} raised {error!r}", where=f"--from {self.name}", fix=fix) from error


def _next(reader: Any) -> Any:
    try:
        return reader.next()
    except StopIteration:
        return None


def _rows(
    batch: Any, policy: str | None, ids: SharedIds, last: dict[str | None, tuple[str, ...]], tally: Tally, where: str
) -> StepRows:
    """The rows of one batch of one policy. Raises BadData where columns are missing, or differ in length."""
    columns: dict[str, Any] = dict(batch)
    missing = [name for name in (Columns.EPS_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS) if name not in columns]
    if missing:
        fix = "have next() give batches with eps_id, obs, actions and rewards, a row a step"
        raise BadData(f"a batch without {', '.join(missing)}", where=where, fix=fix)
    rewards = np.asarray(columns[Columns.REWARDS], np.float64)
    trees = {name: _tree(value) for name, value in columns.items() if name != Columns.INFOS}
    per_step = {name: tree for name, tree in trees.items() if all(len(leaf) == len(rewards) for _, leaf in flatten(tree))}
    for name in trees.keys() - per_step.keys():
        if name in (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS, Columns.EPS_ID, *END_FLAGS):
            fix = "have next() give columns of one row a step"
            raise BadEpisode(f"column {name} has other rows than the {len(rewards)} rewards", where=where, fix=fix)
        tally.drop_column(name, "not one row a step")
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
        extra={name: tree for name, tree in per_step.items() if name not in NOT_EXTRA and _is_numeric(tree)},
        infos=_infos(columns.get(Columns.INFOS)),
        reset_infos=None,
        file=np.zeros(len(rewards), np.int64),
        follows=follows,
    )


def _tree(value: Any) -> Tree:
    if isinstance(value, dict):
        return {str(key): _tree(part) for key, part in value.items()}
    return tuple(map(_tree, value)) if isinstance(value, tuple) else np.asarray(value)


def _is_numeric(tree: Tree) -> bool:
    return all(leaf.dtype.kind in "biuf" for _, leaf in flatten(tree))


def _keys(columns: Mapping[str, Any], policy: str | None) -> Keys:
    eps_id: NDArray[Any] = columns[Columns.EPS_ID]
    agents = columns.get(AGENT_INDEX, np.zeros(len(eps_id), np.int64))
    codes: dict[tuple[Any, Any], int] = {}
    code = [codes.setdefault(key, len(codes)) for key in zip(eps_id.tolist(), agents.tolist(), strict=True)]
    several = len({agent for _, agent in codes}) > 1
    return Keys(
        np.array(code, np.int64),
        tuple(str(eps) for eps, _ in codes),
        tuple(str(agent) if several else None for _, agent in codes),
        (policy,) * len(codes),
    )


def _infos(infos: Any) -> list[Mapping[str, Any]] | None:
    found: list[Mapping[str, Any]] = [info if isinstance(info, dict) else {} for info in ([] if infos is None else infos)]
    return found if any(found) else None
