"""robomimic's HDF5 layout: a group for each demonstration (`data/demo_i`), observations by key, splits by name (`mask/KEY`).

* The last observation of a demonstration is the last of `next_obs`; without these it is not known.
* `dones` at the last step say whether it terminated; all of them are kept as the extra output `step_dones`, because many files
  mark each step at which the task is solved. Simulator `states` and other arrays of one row a step are extra outputs too.
* Actions are in [-1, 1], whatever the environment takes: action scale `normalized`. Those of a bounded Box in the units of an
  environment are rescaled when they are written, which is counted.
* Splits become the field `mask` of each episode, several names with commas; `split --by mask` makes them again. Other
  attributes of a demonstration, such as `model_file`, are custom data too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.environments import EnvironmentSpec
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.dropped_leaves import LEFT_OUT
from offline_cli.formats.hdf5.episodes import Hdf5Source, numbered, one_episode, why_left_out, with_final
from offline_cli.formats.hdf5.our_metadata import OURS, dtypes_of, in_dtype, metadata_text, read_metadata
from offline_cli.formats.hdf5.safe import Hdf5File, Values
from offline_cli.formats.hdf5.writing import Hdf5Sink, attributes_of, check_hdf5, put
from offline_cli.formats.leaf_names import checked_key, heads, tree_of_names
from offline_cli.formats.left_out import count_left_out
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.formats.source import ENV_SCALE, NORMALIZED_SCALE, SourceInfo
from offline_cli.safe_json import from_json
from offline_cli.storage.blanking import blanked
from offline_cli.storage.locations import Location
from offline_cli.tally import Tally
from offline_cli.trees import Tree

__all__ = ["ROBOMIMIC_SINK", "open_robomimic"]

FORMAT: Final = "robomimic"
DATA, DEMO, MASK = "data", "demo_", "mask"
DONES: Final = "step_dones"
ONLY: Final = "obs"  # the key of observations that have none
KNOWN: Final = ("obs", "next_obs", "actions", "rewards", "dones")
NAME: Final = re.compile(r"demo_(?:0|[1-9][0-9]{0,15})", re.ASCII)
GYM: Final = 2  # robomimic's number of the kind of environments that gymnasium has
FIX: Final = "write the demonstration again, or leave it out with --on-error skip"


def open_robomimic(files: Sequence[Location], context: OpenContext) -> Hdf5Source:
    """The files. Raises BadData for one that is damaged."""
    with Hdf5File(files[0]) as file:
        attributes, names = file.attributes(DATA), numbered(file.members(DATA), DEMO)
        first = file.node(f"{DATA}/{names[0]}") if names else None
    ours, arguments = read_metadata(attributes, files[0].url), attributes.get("env_args")
    document = _object_in(arguments)
    name, kwargs = document.get("env_name"), document.get("env_kwargs")
    known: dict[str, Any] = {"action_scale": NORMALIZED_SCALE}
    if isinstance(name, str) and name:
        known["environment"] = EnvironmentSpec(name, kwargs if isinstance(kwargs, dict) else {})
    kind, shape = first.datasets.get("actions", ("", ())) if first else ("", ())
    if kind in ("<f4", "<f8") and len(shape) > 1:
        known |= {"action_space": spaces.Box(-1.0, 1.0, shape[1:], np.dtype(kind).type), "spaces_inferred": True}
    declared = {
        "format": FORMAT,
        "env_args": blanked(arguments) if isinstance(arguments, str) else None,
        "attributes": {key: value for key, value in attributes.items() if key not in ("env_args", "total", OURS)},
        "dtypes": dtypes_of(first, {"rewards": "rewards"}) if first else {},
    }
    info = SourceInfo(format=FORMAT, location=context.location, declared=(declared,), **{**known, **ours})
    is_array = info.observation_space is not None and not isinstance(info.observation_space, (spaces.Dict, spaces.Tuple))
    return Hdf5Source(files, context.location, info, layout=partial(_Demonstrations, is_array=is_array, drop=context.drop))


def _object_in(text: Any) -> dict[str, Any]:
    try:
        document = from_json(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


class _Demonstrations:
    """An `EpisodeLayout`."""

    def __init__(self, file: Hdf5File, prefix: str, tally: Tally, *, is_array: bool, drop: frozenset[str]) -> None:
        """`is_array`: the space of observations, which this program has written, has no keys; `drop`: see `OpenContext`."""
        self._file, self._prefix, self._tally, self._is_array, self._drop = file, prefix, tally, is_array, drop
        self._masks: dict[str, list[str]] = {}

    def names(self) -> list[str]:
        """See `EpisodeLayout`; reads the splits."""
        members = self._file.members(DATA)
        names = numbered(members, DEMO)
        for other in set(members) - set(names):
            self._tally.drop_column(f"{DATA}/{other}", "not a demonstration")
        masks = self._file.node(MASK).values() if MASK in self._file.members() else {}
        for mask, demos in masks.items():
            if isinstance(demos, list) and set(members).issuperset(demos):
                for demo in set(demos).intersection(names):
                    self._masks.setdefault(demo, []).append(mask)
            else:
                self._tally.drop_column(f"{MASK}/{mask}", "not names of demonstrations in the file")
        return names

    def episode(self, name: str) -> tuple[int, EpisodeBatch]:
        """See `EpisodeLayout`."""
        node = self._file.node(f"{DATA}/{name}")
        dropped = {path for path in node.datasets if _dotted(path) in self._drop}
        for path in dropped:
            self._tally.drop_column(_dotted(path), LEFT_OUT)
        values = node.values(without=dropped)
        if "obs" not in heads(node.datasets):
            fix = "extract them with robomimic's dataset_states_to_obs.py"
            raise BadEpisode("no observations are in the demonstration", where=node.where, fix=fix)
        if not np.ndim(values.get("actions", 0)):
            raise BadEpisode("no actions are in the demonstration", where=node.where, fix=FIX)
        steps, has_next = len(values["actions"]), "next_obs" in heads(node.datasets)
        obs, following = (self._observations(values, key, node.where) for key in ("obs", "next_obs"))
        extra = self._extra(values, steps)
        ended, dones = False, values.get("dones")
        if isinstance(dones, np.ndarray):
            extra[DONES] = dones
            ended = bool(dones[-1:].any())
        else:
            self._tally.assume("missing-end-flags")
        data = self._file.attributes(f"{DATA}/{name}", self._tally)
        data.pop("num_samples", None)
        if name in self._masks:
            data[MASK] = ",".join(sorted(self._masks[name]))
        return int(name.removeprefix(DEMO)), one_episode(
            f"{self._prefix}{name}",
            steps,
            where=node.where,
            tally=self._tally,
            obs=with_final(obs, following if has_next else None, node.where),
            actions=np.asarray(values["actions"]),
            rewards=None if "rewards" not in values else np.asarray(values["rewards"]),
            terminated=ended,
            truncated=not ended,
            extra=tree_of_names(extra),
            custom_data={**data, Columns.SOURCE_ID: name},
            final_missing=None if has_next else np.array([True]),
        )

    def _observations(self, values: Mapping[str, Values], key: str, where: str) -> Tree:
        """The arrays below a key as a Dict; the only one, where the space has no keys."""
        found = {path.removeprefix(f"{key}/"): one for path, one in values.items() if path.startswith(f"{key}/")}
        for path, one in found.items():
            if isinstance(one, list):
                fix = f"leave it out: convert ... --drop {_dotted(f'obs/{path}')}"
                raise BadEpisode(f"{key}/{path} holds texts, which episodes do not hold", where=where, fix=fix)
        return found[ONLY] if self._is_array and list(found) == [ONLY] else tree_of_names(found)

    def _extra(self, values: Mapping[str, Values], steps: int) -> dict[str, Values]:
        """Arrays that are extra outputs; others are named."""
        found: dict[str, Values] = {}
        for path, one in values.items():
            head = path.partition("/")[0]
            if head == DONES:
                self._tally.drop_column(path, "the name has a meaning here")
            elif head not in KNOWN and (isinstance(one, list) or one.shape[:1] != (steps,)):
                self._tally.drop_column(path, why_left_out(one, steps))
            elif head not in KNOWN:
                found[path] = one
        return found


def _dotted(path: str) -> str:
    """The path of an observation as `--drop` takes it."""
    return path.removeprefix("next_").replace("/", ".")


class RobomimicSink(Hdf5Sink):
    """A `Sink`; see the module."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, FORMAT)
        self._masks: dict[str, list[str]] = {}
        self._names: set[str] = set()
        self._bounds = _bounds_of(context)

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: a group for each episode."""
        count_left_out(batch, self.context.tally, kept=None, ids=True)
        obs = batch.obs if isinstance(batch.obs, (dict, tuple)) else {ONLY: batch.obs}
        steps = {"actions": self._scaled(batch.actions), "dones": batch.step_flags()[0].astype(np.int64)}
        for name, tree in batch.extra.items():
            steps["dones" if name == DONES else name] = tree
        for at, assumed in enumerate(batch.final_obs_assumed):
            rows = slice(int(batch.starts[at]), int(batch.starts[at + 1]))
            data = dict(batch.custom_data[at]) if batch.custom_data is not None else {}
            data.pop(Columns.FINAL_OBS_ASSUMED, None)  # said by what is not there
            group = self.root.create_group(f"{DATA}/{self._name(data)}")
            put(group, "obs", obs, slice(rows.start + at, rows.stop + at))
            if not assumed:
                put(group, "next_obs", obs, slice(rows.start + at + 1, rows.stop + at + 1))
            group["rewards"] = in_dtype(batch.rewards[rows], self.dtypes.get("rewards"))
            for name, tree in steps.items():
                put(group, name, tree, rows)
            group.attrs.update({**self.attributes_of(data), "num_samples": rows.stop - rows.start})
        self.count(batch)

    def _name(self, data: dict[str, Any]) -> str:
        """`demo_i`: its own of a robomimic file, else the next number."""
        name, masks = data.pop(Columns.SOURCE_ID, None), data.pop(MASK, "")
        if not (isinstance(name, str) and NAME.fullmatch(name) and name not in self._names):
            number = len(self._names)
            while f"{DEMO}{number}" in self._names:
                number += 1
            name = f"{DEMO}{number}"
            self.context.tally.assume("eps-id-not-kept")
        self._names.add(name)
        for mask in masks.split(",") if isinstance(masks, str) and masks else ():
            self._masks.setdefault(mask, []).append(name)
        return name

    def _scaled(self, actions: Tree) -> Tree:
        if self._bounds is None:
            return actions
        low, high = self._bounds
        self.context.tally.assume("actions-rescaled", len(actions))
        return (2 * (actions.astype(np.float64) - low) / (high - low) - 1).astype(actions.dtype)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        context, said = self.context, self.said_by_source()
        others, known, environment = said.get("attributes"), said.get("env_args"), context.environment
        if not (isinstance(known, str) and (environment is None or f'"{environment.id}"' in known)):
            name, kwargs = ("unknown", {}) if environment is None else (environment.id, dict(environment.kwargs))
            known = json.dumps({"env_name": name, "type": GYM, "env_kwargs": kwargs})
        scale = context.action_scale if self._bounds is None else NORMALIZED_SCALE
        attributes = self.root.require_group(DATA).attrs
        attributes.update(attributes_of(others if isinstance(others, dict) else {}))
        attributes.update({"total": self.steps, "env_args": known, OURS: metadata_text(context, scale)})
        for mask, names in self._masks.items():
            self.root[f"{MASK}/{checked_key(mask, MASK)}"] = np.array(names, dtype="S")
        return self.store()


def _bounds_of(context: SinkContext) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Bounds by which actions are rescaled; None: they are in [-1, 1] already, or have no bounds."""
    space = context.action_space
    if not isinstance(space, spaces.Box) or context.action_scale != ENV_SCALE or context.spaces_inferred:
        return None
    if np.dtype(space.dtype).kind != "f" or not space.is_bounded() or bool((space.low == -1).all() and (space.high == 1).all()):
        return None
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return None if bool((low == high).any()) else (low, high)


ROBOMIMIC_SINK: Final = SinkKind(
    FORMAT,
    "an HDF5 file of robomimic's layout, actions in [-1, 1]",
    RobomimicSink,
    check_hdf5,
    {"overwrite"},
    "steps, last observations, extra outputs, custom data that HDF5 has a type for; not infos, clocks, ids but demo_N",
)
