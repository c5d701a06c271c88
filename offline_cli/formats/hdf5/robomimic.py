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
from offline_cli.formats.action_shapes import one_number_each
from offline_cli.formats.dropped_leaves import LEFT_OUT
from offline_cli.formats.hdf5.episodes import Hdf5Source, JoinedEpisodes, StoredEpisode, numbered
from offline_cli.formats.hdf5.safe import Hdf5File
from offline_cli.formats.hdf5.writing import OURS, Hdf5Sink, attributes_of, check_hdf5, put, read_metadata
from offline_cli.formats.leaf_names import checked_key, heads, tree_of_names
from offline_cli.formats.left_out import count_left_out
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.formats.source import ENV_SCALE, NORMALIZED_SCALE, SourceInfo
from offline_cli.formats.step_rows import with_finals
from offline_cli.safe_json import from_json
from offline_cli.storage.blanking import blanked
from offline_cli.storage.locations import Location
from offline_cli.tally import MISSING_REWARDS, Tally
from offline_cli.trees import Tree, map_leaves

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
        actions = file.datasets(f"{DATA}/{names[0]}").get("actions") if names else None
    arguments = attributes.get("env_args")
    known: dict[str, Any] = {"action_scale": NORMALIZED_SCALE, "environment": _environment_of(arguments)}
    if actions is not None and actions.dtype in (np.float32, np.float64) and len(actions.shape) > 1:
        known["action_space"] = spaces.Box(-1.0, 1.0, actions.shape[1:], actions.dtype.type)
        known["spaces_inferred"] = True
    declared = {
        "format": FORMAT,
        "env_args": blanked(arguments) if isinstance(arguments, str) else None,
        "attributes": {key: value for key, value in attributes.items() if key not in ("env_args", "total", OURS)},
    }
    known |= read_metadata(attributes, files[0].url)
    info = SourceInfo(format=FORMAT, location=context.location, declared=(declared,), **known)
    has_keys = info.observation_space is None or isinstance(info.observation_space, (spaces.Dict, spaces.Tuple))
    return Hdf5Source(files, context.location, info, layout=partial(_Demonstrations, has_keys=has_keys, drop=context.drop))


def _environment_of(arguments: Any) -> EnvironmentSpec | None:
    try:
        said = from_json(arguments)
        name, kwargs = said.get("env_name"), said.get("env_kwargs")
    except (ValueError, TypeError, AttributeError):
        return None
    return EnvironmentSpec(name, kwargs if isinstance(kwargs, dict) else {}) if isinstance(name, str) and name else None


class _Demonstrations:
    """An `EpisodeLayout`."""

    def __init__(self, file: Hdf5File, prefix: str, tally: Tally, *, has_keys: bool, drop: frozenset[str]) -> None:
        """`has_keys`: whether observations are a Dict, as in robomimic's own files; `drop`: see `OpenContext`."""
        self._file, self._prefix, self._tally, self._has_keys, self._drop = file, prefix, tally, has_keys, drop
        self._masks: dict[str, list[str]] = {}  # of each demonstration

    def names(self) -> list[str]:
        """See `EpisodeLayout`; reads the splits."""
        members = self._file.members(DATA)
        names = numbered(members, DEMO)
        for other in set(members) - set(names):
            self._tally.drop_column(f"{DATA}/{other}", "not a demonstration")
        for mask, dataset in (self._file.datasets(MASK) if MASK in self._file.members() else {}).items():
            demos = dataset.read()
            if isinstance(demos, list) and set(members).issuperset(demos):
                for demo in set(demos).intersection(names):
                    self._masks.setdefault(demo, []).append(mask)
            else:
                self._tally.drop_column(f"{MASK}/{mask}", "not names of demonstrations in the file")
        return names

    def stored(self, name: str) -> StoredEpisode:
        """See `EpisodeLayout`."""
        place, values = f"{DATA}/{name}", {}
        for path, dataset in self._file.datasets(place).items():
            leaf = path.removeprefix("next_").replace("/", ".")
            if leaf in self._drop:
                self._tally.drop_column(leaf, LEFT_OUT)
                continue
            if dataset.dtype is None and heads([path]) <= {"obs", "next_obs"}:
                fix = f"leave it out: convert ... --drop {leaf}"
                raise BadEpisode(f"{path} holds texts, which episodes do not hold", where=dataset.where, fix=fix)
            found = dataset.read()
            values[path] = np.atleast_1d(found) if isinstance(found, np.ndarray) else found
        attributes = self._file.attributes(place, self._tally, without=("num_samples",))
        if name in self._masks:
            attributes[MASK] = ",".join(sorted(self._masks[name]))
        return StoredEpisode(int(name.removeprefix(DEMO)), f"{self._file.url} {place}", values, attributes)

    def batch(self, joined: JoinedEpisodes) -> EpisodeBatch:
        """See `EpisodeLayout`."""
        values = joined.values
        has_obs, has_next = (any(path.startswith(key) for path in values) for key in ("obs/", "next_obs/"))
        if not has_obs:
            fix = "extract them with robomimic's dataset_states_to_obs.py"
            raise BadEpisode("no observations are in the demonstration", where=joined.where, fix=fix)
        if "actions" not in values:
            raise BadEpisode("no actions are in the demonstration", where=joined.where, fix=FIX)
        steps = joined.rows["actions"]
        joined.check_rows([path for path in values if path.partition("/")[0] in KNOWN], steps)
        if not steps.all():
            raise BadEpisode("no steps", where=joined.where, fix=FIX)
        starts, obs = joined.starts(steps), self._observations(joined, "obs")
        following = self._observations(joined, "next_obs") if has_next else obs
        try:
            whole = map_leaves(lambda acted, after: _with_next(acted, after, starts), obs, following)
        except ValueError as error:
            raise BadEpisode(f"next_obs of another form than obs: {error}", where=joined.where, fix=FIX) from error
        ended: NDArray[np.bool_] = np.zeros(len(joined), np.bool_)
        dones = values.get("dones")
        extra = {path: values[path] for path in values if path.partition("/")[0] not in (*KNOWN, DONES)}
        extra = {path: values[path] for path in extra if joined.has_rows(path, steps)}
        if isinstance(dones, np.ndarray):
            extra[DONES] = dones
            ended = np.asarray(dones[starts[1:] - 1].reshape(len(joined), -1).any(axis=1))
        rewards = one_number_each(
            np.asarray(values.get("rewards", np.zeros(starts[-1]))), "rewards", where=joined.where, fix=FIX
        )
        names = [f"{DEMO}{one.number}" for one in joined.episodes]
        made = EpisodeBatch(
            ids=tuple(f"{self._prefix}{name}" for name in names),
            starts=starts,
            obs=whole,
            actions=values["actions"],
            rewards=rewards.astype(np.float64),
            terminated=ended,
            truncated=~ended,
            extra=tree_of_names(extra),
            custom_data=tuple(
                {**one.attributes, Columns.SOURCE_ID: name} for one, name in zip(joined.episodes, names, strict=True)
            ),
            final_missing=None if has_next else np.ones(len(joined), np.bool_),
        )
        for path in values:
            if path.partition("/")[0] not in KNOWN and path not in extra:
                why = "the name has a meaning here" if heads([path]) == {DONES} else joined.why_left_out(path, steps)
                self._tally.drop_column(path, why)
        self._tally.assume("missing-end-flags", 0 if "dones" in values else len(joined))
        self._tally.assume(MISSING_REWARDS, 0 if "rewards" in values else int(starts[-1]))
        return made

    def _observations(self, joined: JoinedEpisodes, key: str) -> Tree:
        """The arrays below a key as a Dict; the only one, where the space has no keys."""
        found = {path.removeprefix(f"{key}/"): one for path, one in joined.values.items() if path.startswith(f"{key}/")}
        return found[ONLY] if not self._has_keys and list(found) == [ONLY] else tree_of_names(found)


def _with_next(acted: NDArray[Any], after: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Raises ValueError where the two differ in form."""
    if (acted.dtype, acted.shape) != (after.dtype, after.shape):
        raise ValueError(f"{after.dtype} {list(after.shape)} for {acted.dtype} {list(acted.shape)}")
    return with_finals(acted, after, starts)


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
        steps |= {"dones" if name == DONES else name: tree for name, tree in batch.extra.items()}
        for at, assumed in enumerate(batch.final_obs_assumed):
            rows = slice(int(batch.starts[at]), int(batch.starts[at + 1]))
            data = dict(batch.custom_data[at]) if batch.custom_data is not None else {}
            data.pop(Columns.FINAL_OBS_ASSUMED, None)  # said by what is not there
            group = self.root.create_group(f"{DATA}/{self._name(data)}")
            put(group, "obs", obs, slice(rows.start + at, rows.stop + at))
            if not assumed:
                put(group, "next_obs", obs, slice(rows.start + at + 1, rows.stop + at + 1))
            group["rewards"] = batch.rewards[rows]
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
        group = self.root.require_group(DATA)
        group.attrs.update(attributes_of(others if isinstance(others, dict) else {}))
        group.attrs.update({"total": self.steps, "env_args": known})
        self.put_metadata(group, None if self._bounds is None else NORMALIZED_SCALE)
        for mask, names in self._masks.items():
            self.root[f"{MASK}/{checked_key(mask, MASK)}"] = np.array(names, dtype="S")
        return self.store()


def _bounds_of(context: SinkContext) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Bounds by which actions are rescaled; None: they are in [-1, 1] already, or have no bounds."""
    space = context.action_space
    if not isinstance(space, spaces.Box) or context.action_scale != ENV_SCALE or context.spaces_inferred:
        return None
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    is_scaled = bool((low == -1).all() and (high == 1).all())
    is_fit = np.dtype(space.dtype).kind == "f" and space.is_bounded() and not is_scaled and not (low == high).any()
    return (low, high) if is_fit else None


ROBOMIMIC_SINK: Final = SinkKind(
    FORMAT,
    "an HDF5 file of robomimic's layout, actions in [-1, 1]",
    RobomimicSink,
    check_hdf5,
    {"overwrite"},
    "steps, last observations, extra outputs, custom data that HDF5 has a type for; not infos, clocks, ids but demo_N",
)
