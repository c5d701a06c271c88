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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.environments import EnvironmentSpec
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.dropped_leaves import LEFT_OUT
from offline_cli.formats.hdf5.episodes import Column, EpisodeDatasets, fragments_of_files, numbered
from offline_cli.formats.hdf5.our_metadata import OURS, metadata_text, read_metadata
from offline_cli.formats.hdf5.safe import FRAMES, TEXT, Hdf5File, Node
from offline_cli.formats.hdf5.writing import Hdf5Sink, attribute_of, check_hdf5, checked_key, put
from offline_cli.formats.left_out import count_left_out, why_no_column
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.formats.source import ENV_SCALE, NORMALIZED_SCALE, FileSource, Fragments, SourceInfo
from offline_cli.json_documents import from_json
from offline_cli.spaces import Space
from offline_cli.storage.blanking import blanked
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects, Tally
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


def open_robomimic(files: Sequence[Location], context: OpenContext) -> RobomimicSource:
    """The files. Raises BadData for one that is damaged."""
    with Hdf5File(files[0]) as file:
        top = file.node(DATA, whole=False)
        said = read_metadata(top.attributes, file.url)
        names = numbered(top.groups, DEMO)
        kind, shape = file.node(f"{DATA}/{names[0]}").datasets.get("actions", ("", ())) if names else ("", ())
    arguments = top.attributes.get("env_args")
    document = _object_in(arguments)
    name, kwargs = document.get("env_name"), document.get("env_kwargs")
    known: dict[str, Any] = {"action_scale": NORMALIZED_SCALE}
    if isinstance(name, str) and name:
        known["environment"] = EnvironmentSpec(name, kwargs if isinstance(kwargs, dict) else {})
    if kind in ("<f4", "<f8") and len(shape) > 1:
        known |= {"action_space": spaces.Box(-1.0, 1.0, shape[1:], np.dtype(kind).type), "spaces_inferred": True}
    others = {key: value for key, value in top.attributes.items() if key not in ("env_args", "total", OURS)}
    declared = {"format": FORMAT, "env_args": blanked(arguments) if isinstance(arguments, str) else None, "attributes": others}
    info = SourceInfo(format=FORMAT, location=context.location, declared=(declared,), **{**known, **said})
    return RobomimicSource(files, context.location, info, drop=context.drop)


def _object_in(text: Any) -> dict[str, Any]:
    try:
        document = from_json(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


@dataclass(slots=True)
class RobomimicSource(FileSource):
    """Files of demonstrations, in the order given."""

    format: ClassVar[str] = FORMAT
    drop: frozenset[str] = field(default=frozenset(), kw_only=True)  # see `OpenContext`

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole demonstrations in the order of their numbers, large ones in parts."""
        known = self.info.observation_space, self.drop, tally
        return fragments_of_files(self, lambda file, prefix: _Demonstrations(file, prefix, *known), tally, rejects)


class _Demonstrations:
    """An `EpisodeLayout`."""

    def __init__(self, file: Hdf5File, prefix: str, space: Space | None, drop: frozenset[str], tally: Tally) -> None:
        """`space`: of observations, where this program has written it; `drop`: see `OpenContext`."""
        self._file, self._prefix, self._space, self._drop, self._tally = file, prefix, space, drop, tally
        self._masks: dict[str, list[str]] = {}

    def names(self) -> list[str]:
        members = self._file.members(DATA)
        names = numbered(members, DEMO)
        for other in set(members) - set(names):
            self._tally.drop_column(f"{DATA}/{other}", "not a demonstration")
        masks = self._file.node(MASK) if MASK in self._file.top.groups else None
        for mask, (kind, _) in masks.datasets.items() if masks is not None else ():
            demos = masks.texts(mask) if kind == TEXT and masks is not None else []
            if kind != TEXT or not set(members).issuperset(demos):
                why = "it names demonstrations that are not in the file" if kind == TEXT else f"{kind}, and not names"
                self._tally.drop_column(f"{MASK}/{mask}", why)
            for demo in set(demos).intersection(names):
                self._masks.setdefault(demo, []).append(mask)
        return names

    def episode(self, name: str) -> EpisodeDatasets:
        node = self._file.node(f"{DATA}/{name}")
        if not any(path.startswith("obs/") for path in node.datasets):
            fix = "extract them with robomimic's dataset_states_to_obs.py"
            raise BadEpisode("no observations are in the demonstration", where=node.where, fix=fix)
        if not node.datasets.get("actions", ("", ()))[1]:
            raise BadEpisode("no actions are in the demonstration", where=node.where, fix=FIX)
        steps = node.datasets["actions"][1][0]
        obs, following = self._observations(node, "obs"), self._observations(node, "next_obs")
        if following and _keys(obs) != _keys(following):
            raise BadEpisode("next_obs has other keys than obs", where=node.where, fix=FIX)
        extra = {path: Column(node, path) for path in self._extra(node, steps)}
        if "dones" in node.datasets:
            extra[DONES] = Column(node, "dones")
            extra[DONES].check(steps, node.where)
        else:
            self._tally.assume("missing-end-flags")
        ended = "dones" in node.datasets and steps > 0 and bool(node.rows("dones", steps - 1, steps).any())
        kept = {key: value for key, value in node.attributes.items() if key != "num_samples"}
        masks = self._masks.get(name)
        return EpisodeDatasets(
            id=f"{self._prefix}{name}",
            number=int(name.removeprefix(DEMO)),
            where=node.where,
            steps=steps,
            obs=obs,
            next_obs=following or None,
            actions=Column(node, "actions"),
            rewards=Column(node, "rewards") if "rewards" in node.datasets else None,
            terminated=ended,
            truncated=not ended,
            extra=_nested(extra),
            custom_data={**kept, **({MASK: ",".join(sorted(masks))} if masks else {}), Columns.SOURCE_ID: name},
        )

    def _observations(self, node: Node, key: str) -> Tree:
        """The datasets below a key as a Dict; the only one, where the space is known and has no keys."""
        columns: dict[str, Column] = {}
        for path, (kind, _) in node.datasets.items():
            head, _, rest = path.partition("/")
            dotted = f"{Columns.OBS}.{rest.replace('/', '.')}"
            if head == key and dotted in self._drop:
                self._tally.drop_column(dotted, LEFT_OUT)
            elif head == key and kind == TEXT:
                fix = f"leave it out: convert ... --drop {dotted}"
                raise BadEpisode(f"{path} holds texts, which episodes do not hold", where=node.where, fix=fix)
            elif head == key and rest:
                columns[rest] = Column(node, path)
        found, space = _nested(columns), self._space
        if space is not None and not isinstance(space, (spaces.Dict, spaces.Tuple)) and list(found) == [ONLY]:
            return found[ONLY]
        return found

    def _extra(self, node: Node, steps: int) -> Iterator[str]:
        """Datasets that are extra outputs; others are named."""
        for path, (kind, shape) in node.datasets.items():
            head = path.partition("/")[0]
            if head == DONES:
                self._tally.drop_column(path, "the name has a meaning here")
            elif head not in KNOWN and (kind in (TEXT, FRAMES) or shape[:1] != (steps,)):
                self._tally.drop_column(path, why_no_column(kind, shape, steps))
            elif head not in KNOWN:
                yield path
        for attribute in node.left_out:
            self._tally.drop_column(f"@{attribute}", "an attribute that is neither numbers nor text")


def _nested(leaves: Mapping[str, Column]) -> dict[str, Any]:
    """Columns by path, `/` between keys, as a tree."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *above, name = path.split("/")
        inner = tree
        for key in above:
            inner = inner.setdefault(key, {})
        inner[name] = leaf
    return tree


def _keys(tree: Tree) -> Any:
    return {key: _keys(part) for key, part in tree.items()} if isinstance(tree, dict) else None


class RobomimicSink(Hdf5Sink):
    """A `Sink`; see the module."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, FORMAT)
        self._masks: dict[str, list[str]] = {}
        self._names: set[str] = set()
        self._bounds = _bounds_of(context)

    def __enter__(self) -> Self:
        super().__enter__()
        self.root.create_group(DATA)
        return self

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: a group for each episode."""
        count_left_out(batch, self.context.tally, kept=None, ids=True)
        obs = batch.obs if isinstance(batch.obs, (dict, tuple)) else {ONLY: batch.obs}
        actions, assumed = self._scaled(batch.actions), batch.final_obs_assumed
        for at in range(len(batch)):
            rows = slice(int(batch.starts[at]), int(batch.starts[at + 1]))
            data = dict(batch.custom_data[at]) if batch.custom_data is not None else {}
            data.pop(Columns.FINAL_OBS_ASSUMED, None)  # said by what is not there
            group = self.root.create_group(f"{DATA}/{self._name(data)}")
            put(group, "obs", obs, slice(rows.start + at, rows.stop + at))
            if not assumed[at]:
                put(group, "next_obs", obs, slice(rows.start + at + 1, rows.stop + at + 1))
            put(group, "actions", actions, rows)
            group["rewards"] = batch.rewards[rows]
            dones = batch.extra.get(DONES)
            if dones is None:
                dones = batch.step_flags()[0].astype(np.int64)
            group["dones"] = dones[rows]
            for name, tree in batch.extra.items():
                if name != DONES:
                    put(group, name, tree, rows)
            kept = {key: attribute_of(value) for key, value in data.items()}
            self.context.tally.assume("custom-data-not-kept", int(any(value is None for value in kept.values())))
            group.attrs.update({key: value for key, value in kept.items() if value is not None})
            group.attrs["num_samples"] = rows.stop - rows.start
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
        attributes, context, said = self.root[DATA].attrs, self.context, self.said_by_source()
        others = said.get("attributes")
        kept = {key: attribute_of(value) for key, value in (others if isinstance(others, dict) else {}).items()}
        attributes.update({key: value for key, value in kept.items() if value is not None})
        known, environment = said.get("env_args"), context.environment
        if not (isinstance(known, str) and (environment is None or f'"{environment.id}"' in known)):
            name, kwargs = ("unknown", {}) if environment is None else (environment.id, dict(environment.kwargs))
            known = json.dumps({"env_name": name, "type": GYM, "env_kwargs": kwargs})
        scale = context.action_scale if self._bounds is None else NORMALIZED_SCALE
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
