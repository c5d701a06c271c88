"""robomimic's HDF5 layout as a source: a group for each demonstration, observations by key, splits by name.

* The last observation of a demonstration is the last of `next_obs`; without these it is not known.
* `dones` at the last step say whether it terminated; all of them are kept as the extra output `step_dones`, because many files
  mark each step at which the task is solved. Simulator `states` and other arrays of one row a step are extra outputs too.
* Actions are in [-1, 1], whatever the environment takes: action scale `normalized`.
* Splits (`mask/train`) become the field `mask` of each episode, several names with commas; `split --by mask` makes them again.
  Other attributes of a demonstration, such as `model_file`, are custom data too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadEpisode
from offline_cli.formats.hdf5.episode_groups import (
    Recorded,
    check_rows,
    fragments_of_files,
    numbered,
    row_parts,
    tree_of_names,
)
from offline_cli.formats.hdf5.our_metadata import OURS, read_metadata
from offline_cli.formats.hdf5.safe import FRAMES, TEXT, Hdf5File, Node
from offline_cli.formats.left_out import why_no_column
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import NORMALIZED_SCALE, FileSource, Fragments, SourceInfo
from offline_cli.json_documents import from_json
from offline_cli.spaces import Space
from offline_cli.storage.blanking import blanked
from offline_cli.storage.locations import Location
from offline_cli.tally import MISSING_REWARDS, Lost, Rejects, Tally

__all__ = ["DEMO", "DONES", "FORMAT", "MASK", "ONLY", "RobomimicSource", "open_robomimic"]

FORMAT: Final = "robomimic"
DATA: Final = "data"
DEMO: Final = "demo_"
MASK: Final = "mask"
DONES: Final = "step_dones"
ONLY: Final = "obs"  # the key of observations that have none
KNOWN: Final = ("obs", "next_obs", "actions", "rewards", "dones")
FIX: Final = "write the demonstration again, or leave it out with --on-error skip"


def open_robomimic(files: Sequence[Location], context: OpenContext) -> RobomimicSource:
    """The files. Raises BadData for one that is damaged."""
    with Hdf5File(files[0]) as file:
        top = file.node(DATA, whole=False)
        said = read_metadata(top.attributes, file.url)
        names = numbered(top.groups, DEMO)
        first = file.node(f"{DATA}/{names[0]}") if names else None
    arguments = top.attributes.get("env_args")
    document = _environment_in(arguments)
    name, kwargs = document.get("env_name"), document.get("env_kwargs")
    known: dict[str, Any] = {"action_scale": NORMALIZED_SCALE}
    if isinstance(name, str) and name:
        known["environment"] = EnvironmentSpec(name, kwargs if isinstance(kwargs, dict) else {})
    kind, shape = ("", ()) if first is None else first.datasets.get("actions", ("", ()))
    if kind in ("<f4", "<f8") and len(shape) > 1:
        dtype = np.dtype(kind)
        known["action_space"] = spaces.Box(-1.0, 1.0, shape[1:], dtype.type)
        known["spaces_inferred"] = True
    declared = {
        "format": FORMAT,
        "env_args": blanked(arguments) if isinstance(arguments, str) else None,
        "next": first is not None and any(path.startswith("next_obs/") for path in first.datasets),
        "rewards": None if first is None else first.datasets.get("rewards", ("",))[0],
        "dones": None if first is None else first.datasets.get("dones", ("",))[0],
        "attributes": {key: value for key, value in top.attributes.items() if key not in ("env_args", "total", OURS)},
    }
    info = SourceInfo(format=FORMAT, location=context.location, declared=(declared,), **{**known, **said})
    return RobomimicSource(files, context.location, info)


def _environment_in(text: Any) -> dict[str, Any]:
    try:
        document = from_json(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


@dataclass(slots=True)
class RobomimicSource(FileSource):
    """Files of demonstrations, in the order given."""

    format: ClassVar[str] = FORMAT

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole demonstrations in the order of their numbers, large ones in parts."""

        def episodes(file: Hdf5File, prefix: str) -> Iterator[Recorded]:
            return _Reading(file, self.info.observation_space, prefix, tally, rejects, masks_of(file, tally)).episodes()

        return fragments_of_files(self, episodes)


def masks_of(file: Hdf5File, tally: Tally) -> dict[str, list[str]]:
    """The splits that each demonstration is in."""
    found: dict[str, list[str]] = {}
    if MASK not in file.top.groups:
        return found
    demos = set(file.members(DATA))
    masks = file.node(MASK)
    for name, (kind, _) in masks.datasets.items():
        names = masks.texts(name) if kind == TEXT else []
        if kind != TEXT or not demos.issuperset(names):
            why = "it names demonstrations that are not in the file" if kind == TEXT else f"{kind}, and not names"
            tally.drop_column(f"{MASK}/{name}", why)
        for demo in demos.intersection(names):
            found.setdefault(demo, []).append(name)
    return found


@dataclass(slots=True)
class _Reading:
    file: Hdf5File
    space: Space | None  # of observations, where this program has written it
    prefix: str  # of ids, with its hyphen
    tally: Tally
    rejects: Rejects
    masks: Mapping[str, list[str]]
    _told: set[str] = field(default_factory=set)

    def episodes(self) -> Iterator[Recorded]:
        members = self.file.members(DATA)
        names = numbered(members, DEMO)
        for other in set(members) - set(names):
            self.tally.drop_column(f"{DATA}/{other}", "not a demonstration")
        for name in names:
            self.tally.rows_in += 1
            try:
                yield from self._parts(name, self.file.node(f"{DATA}/{name}"))
            except BadEpisode as error:
                self.rejects.add(error)
                self.rejects.lose_episodes(Lost.UNREADABLE)

    def _parts(self, name: str, node: Node) -> Iterator[Recorded]:
        where = f"{self.file.url} {name}"
        obs = [path for path in node.datasets if path.startswith("obs/")]
        if not obs:
            fix = "extract them with robomimic's dataset_states_to_obs.py"
            raise BadEpisode("no observations are in the demonstration", where=where, fix=fix)
        if len(node.datasets.get("actions", ("", ()))[1]) < 1:
            raise BadEpisode("no actions are in the demonstration", where=where, fix=FIX)
        steps = node.datasets["actions"][1][0]
        following = [path for path in node.datasets if path.startswith("next_obs/")]
        if following and sorted(path.removeprefix("next_") for path in following) != sorted(obs):
            raise BadEpisode("next_obs has other keys than obs", where=where, fix=FIX)
        wanted = [*obs, *following, *(path for path in ("actions", "rewards", "dones") if path in node.datasets)]
        extra = self._extra(node, steps)
        check_rows({path: node.datasets[path] for path in wanted}, steps, where)
        if any(node.datasets[path][0] in (TEXT, FRAMES) for path in wanted):
            raise BadEpisode("texts or bytes where numbers are wanted", where=where, fix=FIX)
        read = node.rows
        if "rewards" not in node.datasets:
            self.tally.assume(MISSING_REWARDS, steps)
        dones = read("dones", 0, steps).reshape(steps, -1) if "dones" in node.datasets else None
        if dones is None:
            self.tally.assume("missing-end-flags")
        ended = dones is not None and steps > 0 and bool(dones[-1].any())
        for first, stop in row_parts(steps, (node.datasets[path] for path in (*wanted, *extra))):
            is_last = stop == steps
            tree = {path: self._with_final(read, path, first, stop, bool(following), steps) for path in obs}
            others = {path: read(path, first, stop) for path in extra}
            if dones is not None:
                others[DONES] = read("dones", first, stop)
            yield Recorded(
                id=f"{self.prefix}{name}",
                number=int(name.removeprefix(DEMO)),
                obs=tree_of_names({path.removeprefix("obs/"): leaf for path, leaf in tree.items()}, self.space, ONLY),
                actions=read("actions", first, stop),
                rewards=self._rewards(read, node, first, stop),
                terminated=is_last and ended,
                truncated=is_last and not ended,
                t_started=first,
                final_missing=is_last and not following,
                extra=tree_of_names(others, None, ""),
                custom_data=self._custom(name, node),
            )

    def _rewards(self, read: Any, node: Node, first: int, stop: int) -> NDArray[np.float64]:
        if "rewards" not in node.datasets:
            return np.zeros(stop - first)
        rewards: NDArray[Any] = read("rewards", first, stop).astype(np.float64)
        if rewards.ndim > 1 and rewards.size != len(rewards):
            raise BadEpisode(f"rewards of shape {list(rewards.shape)}", where=self.file.url, fix=FIX)
        return rewards.reshape(stop - first)

    def _with_final(self, read: Any, path: str, first: int, stop: int, has_next: bool, steps: int) -> NDArray[Any]:
        """Rows [first, stop] of observations; the last of all is what the last step led to, or is repeated."""
        if stop < steps:
            rows: NDArray[Any] = read(path, first, stop + 1)
            return rows
        rows = read(path, first, stop)
        final = read(f"next_{path}", steps - 1, steps) if has_next and steps else rows[-1:]
        if final.dtype != rows.dtype or final.shape[1:] != rows.shape[1:]:
            raise BadEpisode(f"next_{path} has another form than {path}", where=self.file.url, fix=FIX)
        return np.concatenate([rows, final])

    def _extra(self, node: Node, steps: int) -> list[str]:
        """Datasets that are extra outputs; others are named once."""
        found = []
        for path, (kind, shape) in node.datasets.items():
            head = path.partition("/")[0]
            if head in KNOWN:
                continue
            if head == DONES:
                self.tally.drop_column(path, "the name has a meaning here")
            elif kind in (TEXT, FRAMES) or shape[:1] != (steps,):
                self.tally.drop_column(path, why_no_column(kind, shape, steps))
            else:
                found.append(path)
        for attribute in node.left_out:
            self.tally.drop_column(f"@{attribute}", "an attribute that is neither numbers nor text")
        return found

    def _custom(self, name: str, node: Node) -> dict[str, Any]:
        kept = {key: value for key, value in node.attributes.items() if key != "num_samples"}
        masks = self.masks.get(name)
        return {**kept, **({MASK: ",".join(sorted(masks))} if masks else {}), Columns.SOURCE_ID: name}
