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
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.hdf5.safe import Hdf5File, Values, numbered
from offline_cli.formats.hdf5.writing import OURS, Hdf5Sink, check_hdf5, environment_of, put, put_attributes, read_metadata
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind, Written, checked_key, count_left_out, tree_of_names
from offline_cli.formats.source import ENV_SCALE, LEFT_OUT, NORMALIZED_SCALE, SourceInfo
from offline_cli.formats.whole_episodes import EpisodeFiles, Reads, whole_episode, why_left_out
from offline_cli.scopes import Scope
from offline_cli.storage.blanking import blanked
from offline_cli.storage.locations import Location
from offline_cli.tally import MISSING_REWARDS, Tally
from offline_cli.trees import Tree

FORMAT: Final = "robomimic"
DATA, DEMO, MASK = "data", "demo_", "mask"
DONES: Final = "step_dones"
ONLY: Final = "obs"  # the key of observations that have none
KNOWN: Final = ("obs", "next_obs", "actions", "rewards", "dones")
NAME: Final = re.compile(r"demo_(?:0|[1-9][0-9]{0,15})", re.ASCII)
GYM: Final = 2  # robomimic's number of the kind of environments that gymnasium has
FIX: Final = "write the demonstration again, or leave it out with --on-error skip"


def open_robomimic(files: Sequence[Location], context: OpenContext) -> EpisodeFiles:
    """The files. Raises BadData for one that is damaged."""
    with Hdf5File(files[0]) as file:
        attributes, demos = file.attributes(DATA), numbered(file.members(DATA), DEMO)
        actions = file.datasets(f"{DATA}/{demos[0][1]}").get("actions") if demos else None
    arguments = attributes.get("env_args")
    environment = environment_of(arguments, "env_name", "env_kwargs")
    known: dict[str, Any] = {"action_scale": NORMALIZED_SCALE, "environment": environment}
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
    return RobomimicSource(files, context.location, info, drop=context.drop)


@dataclass(slots=True)
class RobomimicSource(EpisodeFiles):
    """Files of demonstrations."""

    format: ClassVar = FORMAT

    def episodes(self, file: Location, prefix: str, held: Scope, tally: Tally) -> Reads:
        """See `EpisodeFiles`; reads the splits."""
        opened = held.enter(Hdf5File(file, self.read_options.memory_limit))
        members = opened.members(DATA)
        demos, masks = numbered(members, DEMO), dict[str, list[str]]()
        for other in set(members).difference(name for _, name in demos):
            tally.drop_column(f"{DATA}/{other}", "not a demonstration")
        for mask, dataset in (opened.datasets(MASK) if MASK in opened.members() else {}).items():
            names = dataset.read()
            if isinstance(names, list) and set(members).issuperset(names):
                for name in set(names):
                    masks.setdefault(name, []).append(mask)
            else:
                tally.drop_column(f"{MASK}/{mask}", "not names of demonstrations in the file")
        for number, name in demos:
            data = {MASK: ",".join(sorted(masks[name]))} if name in masks else {}
            yield [number], partial(self._episode, opened, name, prefix, data, tally)

    def _episode(self, file: Hdf5File, name: str, prefix: str, data: dict[str, Any], tally: Tally) -> EpisodeBatch:
        place, where = f"{DATA}/{name}", f"{file.url} {DATA}/{name}"
        values, extra, dropped = dict[str, Values](), dict[str, Any](), dict[str, str]()
        for path, dataset in file.datasets(place).items():
            leaf = path.removeprefix("next_").replace("/", ".")
            if leaf in self.drop:
                dropped[leaf] = LEFT_OUT
            else:
                values[path] = dataset.read()
        obs, after = (self._observations(values, key) for key in ("obs", "next_obs"))
        if obs is None:
            fix = "extract them with robomimic's dataset_states_to_obs.py"
            raise BadEpisode("no observations are in the demonstration", where=where, fix=fix)
        if "actions" not in values:
            raise BadEpisode("no actions are in the demonstration", where=where, fix=FIX)
        steps, dones = len(values["actions"]), values.get("dones")
        for path, one in values.items():
            why = "the name has a meaning here" if path.startswith(DONES) else why_left_out(one, steps)
            if path.partition("/")[0] not in KNOWN and why:
                dropped[path] = why
            elif path.partition("/")[0] not in KNOWN:
                extra[path] = one
        if isinstance(dones, np.ndarray):
            extra[DONES] = dones
        ended = isinstance(dones, np.ndarray) and bool(dones[-1:].any())
        made = whole_episode(
            f"{prefix}{name}",
            where,
            obs=obs,
            next_obs=obs if after is None else after,
            actions=values["actions"],
            rewards=values.get("rewards", np.zeros(steps)),
            terminated=ended,
            truncated=not ended,
            extra=tree_of_names(extra),
            custom_data=({**file.attributes(place, tally, without=("num_samples",)), **data, Columns.SOURCE_ID: name},),
        )
        for path, why in dropped.items():
            tally.drop_column(path, why)
        tally.assume("missing-end-flags", int("dones" not in values))
        tally.assume(MISSING_REWARDS, 0 if "rewards" in values else steps)
        return made

    def _observations(self, values: Mapping[str, Values], key: str) -> Tree | None:
        """The arrays below a key as a Dict; the only one, where the declared space has no keys."""
        found = {path.removeprefix(f"{key}/"): one for path, one in values.items() if path.startswith(f"{key}/")}
        space = self.info.observation_space
        if list(found) == [ONLY] and not (space is None or isinstance(space, (spaces.Dict, spaces.Tuple))):
            return found[ONLY]
        return tree_of_names(found) or None


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
            self.put_attributes(group, {**data, "num_samples": rows.stop - rows.start})
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
        said, environment = self.said_by_source(), self.context.environment
        others, known = said.get("attributes"), said.get("env_args")
        if not (isinstance(known, str) and (environment is None or f'"{environment.id}"' in known)):
            name, kwargs = ("unknown", {}) if environment is None else (environment.id, dict(environment.kwargs))
            known = json.dumps({"env_name": name, "type": GYM, "env_kwargs": kwargs})
        group = self.root.require_group(DATA)
        put_attributes(group, {**(others if isinstance(others, dict) else {}), "total": self.steps, "env_args": known})
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
