"""Convert arrays of step rows to a batch of fragments: by agent, end flags, and where episodes are split.

Rows are split where the id changes, after an end flag, where a timestep does not follow the previous one, and at the end of a
file, unless the observations chain across it. Contradicting flags are counted.

Replay buffers (stable-baselines3, d3rlpy) store discrete actions, rewards and flags as (N, 1). A declared space sets the shape
of its leaf; without one, integer actions (N, 1) are discrete.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.source import StartKind
from offline_cli.tally import DONES, EpisodePlace, Tally
from offline_cli.trees import Tree, equal_values, flatten, map_leaves


def choices(actions: Tree) -> Tree:
    """Actions without a declared space: integers (N, 1) become (N,), the shape of Discrete."""
    return map_leaves(lambda leaf: leaf.reshape(-1) if leaf.dtype.kind in "iu" and leaf.shape[1:] == (1,) else leaf, actions)


def as_shape(leaf: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Reshape a leaf with one number per step to its space's shape, () or (1,); other leaves are unchanged."""
    return leaf.reshape(len(leaf), *shape) if {leaf.shape[1:], shape} == {(), (1,)} else leaf


def one_number_each(values: NDArray[Any], name: str, *, where: str, fix: str) -> NDArray[Any]:
    """Rewards or flags as (N,), from (N,) or (N, 1). Raises BadEpisode for other shapes and non-numeric values."""
    if values.dtype.kind not in "biuf" or values.shape[1:] not in ((), (1,)):
        raise BadEpisode(f"{name} are {values.dtype} of shape {list(values.shape)}", where=where, fix=fix)
    return np.asarray(values.reshape(-1))


NO_MODULE: Final = "default_policy"  # RLlib's names for a missing module or agent
NO_AGENT: Final = "default_agent"

Pair = tuple[str | None, str | None]  # agent, module

LEGACY: Final = (Columns.DONES, "done")
END_FLAGS: Final = (Columns.TERMINATEDS, Columns.TRUNCATEDS, *LEGACY)
"""All columns that may mark an end."""


def agent_episode_id(eps_id: Any, module: str | None, agent: Any) -> str:
    """The id of an agent's episode if several agents share `eps_id`."""
    return f"{eps_id}-{NO_MODULE if module is None else module}-{NO_AGENT if agent is None else agent}"


@dataclass(slots=True)
class SharedIds:
    """Gives agents that share an `eps_id` distinct ids.

    If the first rows contain an `eps_id` of several agents, every id of the source includes its agent. If that appears only
    later, earlier ids stay, and only further agents of an `eps_id` get ids with their names.
    """

    name_all: bool | None = None  # whether every id includes its agent; None: the first rows decide
    _owners: dict[str, Pair] = field(default_factory=dict)  # which agent has the plain id

    def named(self, keys: Keys) -> Keys:
        """`keys` with a unique id for each."""
        pairs = list(zip(keys.agent_ids, keys.module_ids, strict=True))
        if self.name_all is None:
            self.name_all = len(set(keys.eps_ids)) < len(keys.eps_ids)
        named = zip(keys.eps_ids, pairs, strict=True)
        shares = [self.name_all or self._owners.setdefault(eps_id, pair) != pair for eps_id, pair in named]
        if not any(shares):
            return keys
        rows = list(zip(keys.eps_ids, pairs, shares, strict=True))
        return replace(
            keys,
            eps_ids=tuple(agent_episode_id(eps, module, agent) if shared else eps for eps, (agent, module), shared in rows),
            multi_agent_ids=tuple(eps if shared else None for eps, _, shared in rows),
        )


def chained(obs: Tree, next_obs: Tree) -> NDArray[np.bool_]:
    """(N-1,) whether row i's next observation equals the observation of row i + 1; both trees have N rows."""
    theirs = dict(flatten(next_obs))
    return np.asarray(np.logical_and.reduce([equal_rows(leaf[1:], theirs[path][:-1]) for path, leaf in flatten(obs)]))


def equal_rows(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """(N,) whether rows of two leaves (N, ...) are equal; NaN equals NaN."""
    equal = equal_values(left, right)
    return np.asarray(equal.all(axis=tuple(range(1, equal.ndim))))


def end_flags(columns: Mapping[str, NDArray[Any]], rows: int, tally: Tally) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(N,) terminateds and truncateds from the end flags among `columns`.

    Counts terminations marked only by `dones` (`dones-as-terminateds`), and steps where it contradicts the other flags
    (`dones-disagree`).
    """
    read = {name: np.asarray(columns[name]).astype(np.bool_) for name in END_FLAGS if name in columns}
    none = np.zeros(rows, np.bool_)
    truncateds = read.get(Columns.TRUNCATEDS, none)
    legacy = [read[name] for name in LEGACY if name in read]
    if Columns.TERMINATEDS in read:
        terminateds = read[Columns.TERMINATEDS]
    else:
        terminateds = legacy[0] & ~truncateds if legacy else none
        tally.assume(DONES, int(terminateds.sum()))
    for dones in legacy:
        tally.assume("dones-disagree", int((dones != (terminateds | truncateds)).sum()))
    return terminateds, truncateds


@dataclass(frozen=True, slots=True)
class Keys:
    """The episode key of each row: distinct keys, and each row's index into them."""

    code: NDArray[np.int64]  # (N,) index into the tuples
    eps_ids: tuple[str, ...]
    agent_ids: tuple[str | None, ...]
    module_ids: tuple[str | None, ...]
    multi_agent_ids: tuple[str | None, ...] | None = None  # None: no multi-agent episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRows:
    """N rows in the order of their source."""

    keys: Keys
    obs: Tree  # leaves (N, *obs_shape)
    next_obs: Tree | None
    actions: Tree  # leaves (N, *action_shape)
    rewards: NDArray[np.float64]  # (N,)
    terminateds: NDArray[np.bool_]  # (N,)
    truncateds: NDArray[np.bool_]  # (N,)
    t: NDArray[np.int64] | None  # (N,)
    extra: Mapping[str, Tree]  # leaves (N, ...)
    infos: Sequence[Mapping[str, Any]] | None = None  # (N,) of each step's next observation
    reset_infos: Sequence[Mapping[str, Any]] | None = None  # (N,) used at first steps
    file: NDArray[np.int64] | None = None  # (N,) changes at the end of a file, and where rows were lost
    follows: bool = False  # the first row directly follows an unfinished row of the same key
    where: Callable[[int], str] | None = None  # formats the place of a row; None: use episode and step
    final_assumed: NDArray[Any] | None = None  # (N,) whether a last row's `next_obs` was not recorded


def timesteps(values: NDArray[Any], *, where: Callable[[int], str]) -> NDArray[np.int64]:
    """(N,) timesteps as integers. Raises BadEpisode, naming the row, for a negative or fractional one."""
    with np.errstate(invalid="ignore"):  # invalid values are detected below
        steps = values.astype(np.int64)
        bad = np.flatnonzero((steps != values) | (steps < 0))
    if len(bad):
        row = int(bad[0])
        raise BadEpisode(
            f"column {Columns.T} holds {values[row]}, not a timestep",
            where=where(row),
            fix="count the steps of an episode from 0, or remove the column if the rows are in order",
        )
    return steps


def fragments_of_rows(rows: SourceRows, tally: Tally, *, lost: Container[str] = ()) -> tuple[EpisodeBatch, NDArray[np.int64]]:
    """A batch with one fragment per run of rows, and (E,) the first row of each; counts joints and broken chains.

    `lost`: ids of episodes known to have lost rows, whose broken chains are not counted.
    """
    ended, code = rows.terminateds | rows.truncateds, rows.keys.code
    same_key = code[1:] == code[:-1]
    follows = same_key & ~ended[:-1]
    if rows.t is not None:
        follows &= rows.t[1:] == rows.t[:-1] + 1
    file_ends = np.zeros(len(follows), np.bool_) if rows.file is None else rows.file[1:] != rows.file[:-1]
    chains = None if rows.next_obs is None else chained(rows.obs, rows.next_obs)
    joined = follows if rows.t is not None else follows & (~file_ends if chains is None else chains | ~file_ends)
    tally.fragments_stitched += int((joined & file_ends).sum())
    if chains is not None:
        broken = np.flatnonzero(joined & ~chains) + 1
        if len(broken) and lost:
            broken = broken[[rows.keys.eps_ids[key] not in lost for key in code[broken].tolist()]]
        tally.assume("broken-chain", len(broken), places=lambda: (_place(rows, row) for row in broken.tolist()))
    first = np.flatnonzero(np.concatenate([[True], ~joined]))
    kinds = None
    if rows.t is None:
        continues = np.concatenate([[rows.follows], follows])[first]
        kinds = np.where(continues, StartKind.CONTINUES, StartKind.UNKNOWN).astype(np.uint8)
        if chains is not None:
            kinds[np.concatenate([[False], ended[:-1] & chains & same_key])[first]] = StartKind.AFTER_END
    return _batch(rows, first, kinds), first


def _place(rows: SourceRows, row: int) -> EpisodePlace:
    name = rows.keys.eps_ids[int(rows.keys.code[row])]
    words = f"episode {name}" if rows.t is None else f"episode {name}, step {rows.t[row]}"
    return EpisodePlace(words if rows.where is None else f"{rows.where(row)}, {words}", name)


def _batch(rows: SourceRows, first: NDArray[np.int64], start_kind: NDArray[np.uint8] | None) -> EpisodeBatch:
    starts = np.concatenate([first, [len(rows.rewards)]]).astype(np.int64)
    last, keys, codes = starts[1:] - 1, rows.keys, rows.keys.code[first].tolist()
    finals = rows.obs if rows.next_obs is None else rows.next_obs
    assumed = [] if rows.final_assumed is None else rows.final_assumed[last].tolist()
    return EpisodeBatch(
        ids=tuple(keys.eps_ids[code] for code in codes),
        starts=starts,
        obs=map_leaves(lambda acted, final: with_finals(acted, final, starts), rows.obs, finals),
        actions=rows.actions,
        rewards=rows.rewards,
        terminated=rows.terminateds[last],
        truncated=rows.truncateds[last],
        extra=rows.extra,
        infos=_infos(rows, starts),
        t_started=None if rows.t is None else rows.t[first],
        start_kind=start_kind,
        final_missing=np.ones(len(first), np.bool_) if rows.next_obs is None else None,
        custom_data=tuple({Columns.FINAL_OBS_ASSUMED: True} if one else {} for one in assumed) if any(assumed) else None,
        agent_ids=_names(keys.agent_ids, codes),
        module_ids=_names(keys.module_ids, codes),
        multi_agent_ids=None if keys.multi_agent_ids is None else _names(keys.multi_agent_ids, codes),
    )


def with_finals(acted: NDArray[Any], final: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """(N+E, ...) the observations acted on, followed in each run by the row of `final` (N, ...) of its last step.

    They have the common dtype of both.
    """
    acted = acted.astype(np.result_type(acted.dtype, final.dtype), copy=False)
    return np.insert(acted, starts[1:], final[starts[1:] - 1], axis=0)


def _infos(rows: SourceRows, starts: NDArray[np.int64]) -> list[Mapping[str, Any]] | None:
    if rows.infos is None and rows.reset_infos is None:
        return None
    out: list[Mapping[str, Any]] = []
    for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        out.append(rows.reset_infos[a] if rows.reset_infos is not None else {})
        out += rows.infos[a:b] if rows.infos is not None else [{}] * (b - a)
    return out


def _names(names: tuple[str | None, ...], codes: list[int]) -> tuple[str | None, ...] | None:
    chosen = tuple(names[code] for code in codes)
    return None if all(name is None for name in chosen) else chosen
