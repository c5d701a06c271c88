"""Episodes as one file of robomimic's layout: `data/demo_i`, and the splits of the field `mask`.

Actions of a bounded Box are written in [-1, 1], as robomimic wants them: those in the units of an environment are rescaled,
which is counted. Observations without keys get the key `obs`. Not kept: infos, and ids other than `demo_i`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.hdf5.our_metadata import OURS, metadata_text
from offline_cli.formats.hdf5.writing import (
    EpisodeSink,
    attribute_of,
    check_file,
    checked_key,
    count_left_out,
    said_by_source,
)
from offline_cli.formats.robomimic.reader import DEMO, DONES, FORMAT, MASK, ONLY
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.formats.source import ENV_SCALE, NORMALIZED_SCALE
from offline_cli.storage.locations import Location
from offline_cli.trees import Tree, equal_values

__all__ = ["ROBOMIMIC"]

NAME: Final = re.compile(r"demo_(?:0|[1-9][0-9]{0,15})", re.ASCII)
GYM: Final = 2  # robomimic's number of the kind of environments that gymnasium has
FORMS: Final = ("|b1", "|i1", "|u1", "<i4", "<i8", "<f4", "<f8")


class RobomimicSink(EpisodeSink):
    """A `Sink`; see above."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, FORMAT)
        self._said = said_by_source(context, FORMAT)
        self._masks: dict[str, list[str]] = {}
        self._names: set[str] = set()
        self._number = 0
        self._bounds = _bounds_of(context)

    def __enter__(self) -> Self:
        super().__enter__()
        self._file.root.create_group("data")
        return self

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: a group for each episode."""
        count_left_out(batch, self.context.tally, data=False)
        actions = self._scaled(batch.actions)
        for episode in range(len(batch)):
            rows = slice(int(batch.starts[episode]), int(batch.starts[episode + 1]))
            seen = slice(rows.start + episode, rows.stop + episode)
            data = dict(batch.custom_data[episode]) if batch.custom_data is not None else {}
            group = self._file.root.create_group(f"data/{self._name(data, batch.ids[episode])}")
            _put(group, "obs", _keyed(batch.obs), seen)
            if self._said.get("next", True):
                _put(group, "next_obs", _keyed(batch.obs), slice(seen.start + 1, seen.stop + 1))
            else:
                data.pop(Columns.FINAL_OBS_ASSUMED, None)  # said by what is not there
            _put(group, "actions", actions, rows)
            group["rewards"] = self._rewards(batch.rewards[rows])
            ends = np.arange(1, rows.stop - rows.start + 1) == rows.stop - rows.start
            for name, tree in batch.extra.items():
                if name != DONES:
                    _put(group, name, tree, rows)
            dones = batch.extra.get(DONES)
            group["dones"] = self._dones(ends & bool(batch.terminated[episode])) if dones is None else dones[rows]
            group.attrs["num_samples"] = rows.stop - rows.start
            self._put_attributes(group, data)
        self.count(batch)

    def _name(self, data: dict[str, Any], eps_id: str) -> str:
        """`demo_i`: its own of a robomimic file, else the next number."""
        name = data.pop(Columns.SOURCE_ID, None)
        if not (isinstance(name, str) and NAME.fullmatch(name) and name not in self._names):
            while f"{DEMO}{self._number}" in self._names:
                self._number += 1
            name = f"{DEMO}{self._number}"
            self.context.tally.assume("eps-id-not-kept")
        self._names.add(name)
        masks = data.pop(MASK, "")
        for mask in masks.split(",") if isinstance(masks, str) and masks else ():
            self._masks.setdefault(mask, []).append(name)
        return name

    def _put_attributes(self, group: Any, data: Mapping[str, Any]) -> None:
        left = 0
        for key, value in data.items():
            kept = attribute_of(value)
            left += kept is None
            if kept is not None:
                group.attrs[key] = kept
        self.context.tally.assume("custom-data-not-kept", int(left > 0))

    def _rewards(self, rewards: NDArray[np.float64]) -> NDArray[Any]:
        kind = self._said.get("rewards")
        if kind not in FORMS:
            return rewards
        formed: NDArray[Any] = rewards.astype(kind)
        self.context.tally.assume("rewards-rounded", int((~equal_values(formed.astype(np.float64), rewards)).sum()))
        return formed

    def _dones(self, ends: NDArray[np.bool_]) -> NDArray[Any]:
        kind = self._said.get("dones")
        return ends.astype(kind if kind in FORMS else np.int64)

    def _scaled(self, actions: Tree) -> Tree:
        if self._bounds is None:
            return actions
        low, high = self._bounds
        self.context.tally.assume("actions-rescaled", len(actions))
        scaled = 2 * (actions.astype(np.float64) - low) / (high - low) - 1
        return scaled.astype(actions.dtype)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        root = self._file.root
        data = root["data"]
        others = self._said.get("attributes")
        for key, value in (others if isinstance(others, dict) else {}).items():
            kept = attribute_of(value)
            if kept is not None:
                data.attrs[key] = kept
        data.attrs["total"] = self.steps
        data.attrs["env_args"] = self._env_args()
        context = self.context
        data.attrs[OURS] = metadata_text(context, NORMALIZED_SCALE if self._bounds is not None else context.action_scale)
        for mask, names in self._masks.items():
            root[f"{MASK}/{checked_key(mask, MASK)}"] = np.array(names, dtype="S")
        self._file.commit()
        return self.written(1, self._file.bytes)

    def _env_args(self) -> str:
        known, environment = self._said.get("env_args"), self.context.environment
        if isinstance(known, str) and (environment is None or f'"{environment.id}"' in known):
            return known
        name, kwargs = ("unknown", {}) if environment is None else (environment.id, dict(environment.kwargs))
        return json.dumps({"env_name": name, "type": GYM, "env_kwargs": kwargs})


def _bounds_of(context: SinkContext) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Bounds by which actions are rescaled; None: they are in [-1, 1] already, or have no bounds."""
    space = context.action_space
    if not isinstance(space, spaces.Box) or context.action_scale != ENV_SCALE or context.spaces_inferred:
        return None
    if np.dtype(space.dtype).kind != "f" or not space.is_bounded() or bool((space.low == -1).all() and (space.high == 1).all()):
        return None
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return None if bool((low == high).any()) else (low, high)


def _keyed(tree: Tree) -> Tree:
    """Observations with a key."""
    return tree if isinstance(tree, (dict, tuple)) else {ONLY: tree}


def _put(group: Any, name: str, tree: Tree, rows: slice) -> None:
    if isinstance(tree, (dict, tuple)):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            _put(group, f"{name}/{checked_key(str(key), group.name)}", part, rows)
    else:
        group[name] = tree[rows]


ROBOMIMIC: Final = SinkKind(
    FORMAT,
    "an HDF5 file of robomimic's layout, actions in [-1, 1]",
    RobomimicSink,
    check_file,
    {"overwrite"},
    "steps, last observations, extra outputs, custom data that HDF5 has a type for; not infos, clocks, ids but demo_N",
)
