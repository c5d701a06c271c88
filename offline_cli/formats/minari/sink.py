"""Episodes as a Minari dataset: `--out D` gets `D/data`, which Minari opens as it is (`MinariDataset("D/data")`).

A folder of Minari's own root is a dataset of that id: `--out ~/.minari/datasets/walker/expert-v0`. Images are stored as they
are, without JPEG. Episodes are numbered from 0; an id that is no such number is kept as the attribute `eps_id`, and so are the
ids of agents. Extra model outputs are datasets that Minari does not look at (`extra_model_outputs`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import OutputExists
from offline_cli.formats.hdf5.writing import EpisodeSink, attribute_of, checked_key, count_left_out, said_by_source
from offline_cli.formats.minari.metadata import FORMAT, HDF5, METADATA, dataset_id, environment_text, space_text
from offline_cli.formats.minari.reader import EXTRA, MAIN
from offline_cli.formats.sink import SinkContext, SinkKind, Written, refuse_existing
from offline_cli.spaces import check_supported
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole
from offline_cli.trees import Tree

__all__ = ["MINARI", "MinariSink"]

VERSION: Final = "0.5.4"  # of Minari, whose layout this is
DATA: Final = "data"
HEAD: Final = 1 << 16
KEPT: Final = ("eps_id", "agent_id", "module_id")


class MinariSink(EpisodeSink):
    """A `Sink`; see above."""

    extra = FORMAT

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, FORMAT)
        self._folder = target.join(DATA)
        for space in (context.observation_space, context.action_space):
            check_supported(space, where=f"--to {FORMAT}")

    @property
    def place(self) -> Location:
        """See `EpisodeSink`."""
        return self._folder.join(MAIN)

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: a group for each episode."""
        count_left_out(batch, self.context.tally, infos=False, data=False)
        returns = batch.returns
        for episode in range(len(batch)):
            group = self._file.root.create_group(f"episode_{self.episodes + episode}")
            rows = slice(int(batch.starts[episode]), int(batch.starts[episode + 1]))
            seen = slice(rows.start + episode, rows.stop + episode + 1)
            _put(group, "observations", batch.obs, seen)
            _put(group, "actions", batch.actions, rows)
            rewards = batch.rewards[rows]
            group["rewards"] = rewards
            ends = np.arange(1, len(rewards) + 1) == len(rewards)
            group["terminations"] = ends & bool(batch.terminated[episode])
            group["truncations"] = ends & bool(batch.truncated[episode])
            for name, tree in batch.extra.items():
                _put(group, f"{EXTRA}{name}", tree, rows)
            infos = group.create_group("infos")
            if batch.infos is not None:
                self._put_infos(infos, batch.infos[seen], batch.ids[episode])
            statistics = reward_statistics(rewards, float(returns[episode]))
            group.attrs.update({"id": self.episodes + episode, "total_steps": len(rewards), **statistics})
            group.attrs.update(self._attributes(batch, episode))
        self.count(batch)

    def _attributes(self, batch: EpisodeBatch, episode: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        left = 0
        for name, value in flat(batch.custom_data[episode] if batch.custom_data is not None else {}):
            kept = attribute_of(value)
            left += kept is None
            if kept is not None:
                found[name] = kept
        self.context.tally.assume("custom-data-not-kept", bool(left))
        theirs = batch.agent_ids, batch.module_ids
        for key, names in zip(KEPT[1:], theirs, strict=True):
            if names is not None and names[episode] is not None:
                found[key] = names[episode]
        if batch.ids[episode] != str(self.episodes + episode):
            found["eps_id"] = batch.ids[episode]
        return found

    def _put_infos(self, group: Any, infos: Sequence[Mapping[str, Any]], name: str) -> None:
        """Infos as arrays of one value for each observation; what cannot be one is counted and named."""
        for path, values in info_columns(infos, self._drop):
            group[path] = values if isinstance(values, np.ndarray) else list(values)

    def _drop(self, path: str) -> None:
        self.context.tally.drop_column(
            f"infos/{path}", "Minari keeps infos that have one value, of one form, for each observation"
        )

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`: metadata.json, without which nothing is a dataset, comes last."""
        self._folder.make_folder()
        metadata = self._folder.join(METADATA)
        if metadata.exists():
            metadata.remove()
        self._file.commit()
        document = document_of(self.context, self.target, HDF5, self.episodes, self.steps, self._file.bytes)
        data = json.dumps(document, ensure_ascii=False).encode()
        write_whole(metadata, data, folder=self._folder)
        return self.written(2, self._file.bytes + len(data))


def _put(group: Any, name: str, tree: Tree, rows: slice) -> None:
    if isinstance(tree, dict):
        for key, part in tree.items():
            _put(group, f"{name}/{checked_key(key, group.name)}", part, rows)
    elif isinstance(tree, tuple):
        for index, part in enumerate(tree):
            _put(group, f"{name}/_index_{index}", part, rows)
    else:
        group[name] = tree[rows]


def flat(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Values by name, those within objects by `/`."""
    found: list[tuple[str, Any]] = []
    for key, value in data.items():
        found += flat(value, f"{prefix}{key}/") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return found


def info_columns(
    infos: Sequence[Mapping[str, Any]], drop: Callable[[str], None], prefix: str = ""
) -> list[tuple[str, NDArray[Any] | Sequence[str]]]:
    """Arrays, or texts, of keys that all infos have, those of nested infos by `/`; other keys go to `drop`."""
    found: list[tuple[str, NDArray[Any] | Sequence[str]]] = []
    keys = dict.fromkeys(key for info in infos for key in info)
    for key in keys:
        path = f"{prefix}{key}"
        values = [info[key] for info in infos if key in info]
        if len(values) < len(infos) or "/" in key or not key:
            drop(path)
        elif all(isinstance(value, Mapping) for value in values):
            found += info_columns(values, drop, f"{path}/")
        elif all(isinstance(value, str) for value in values):
            found.append((path, values))
        else:
            array = _one_array(values)
            if array is None:
                drop(path)
            else:
                found.append((path, array))
    return found


def _one_array(values: Sequence[Any]) -> NDArray[Any] | None:
    try:
        array = np.asarray(values)
    except ValueError:
        return None
    return array if array.dtype.kind in "biuf" else None


def reward_statistics(rewards: NDArray[np.float64], total: float) -> dict[str, float]:
    """What Minari's recorder notes of each episode."""
    if not len(rewards):
        return {"rewards_sum": 0.0}
    figures = {"mean": rewards.mean(), "std": rewards.std(), "max": rewards.max(), "min": rewards.min()}
    return {"rewards_sum": total, **{f"rewards_{name}": float(value) for name, value in figures.items()}}


def document_of(context: SinkContext, target: Location, stored: str, episodes: int, steps: int, nbytes: int) -> dict[str, Any]:
    """`metadata.json`: what a Minari dataset among the sources said, and what was written."""
    said = {key: value for key, value in said_by_source(context, FORMAT).items() if key != "format"}
    environment = context.environment
    known = said.pop("env_spec", None)
    is_same = isinstance(known, str) and environment is not None and f'"id": "{environment.id}"' in known
    text = known if is_same else environment_text(environment)
    return {
        "minari_version": VERSION,
        **said,
        "total_episodes": episodes,
        "total_steps": steps,
        "data_format": stored,
        "jpeg_encoding": False,
        "observation_space": space_text(context.observation_space),
        "action_space": space_text(context.action_space),
        **({} if text is None else {"env_spec": text}),
        "dataset_size": round(nbytes / 1e6, 1),
        "dataset_id": dataset_id(said.get("dataset_id"), target.name),
    }


def check(target: Location, *, overwrite: bool, resume: bool) -> None:
    """Raise OutputExists where something is at `target`, unless it is a Minari dataset that is to be replaced."""
    if overwrite and target.exists():
        folder, files = target.join(DATA), target.files()
        known = {folder.join(name).path for name in (METADATA, MAIN)}
        theirs = [file for file in files if file.path not in known]
        theirs += [file for file in files if file.name == METADATA and b'"data_format"' not in file.start(HEAD)[0]]
        if theirs:
            fix = "give another --out, or remove it yourself"
            raise OutputExists("something else than a Minari dataset in HDF5 is here", where=theirs[0].url, fix=fix)
        return
    refuse_existing(target, overwrite=False, resume=False)


MINARI: Final = SinkKind(
    FORMAT,
    "a Minari dataset in HDF5",
    MinariSink,
    check,
    {"overwrite"},
    "all but clocks, ids of multi-agent episodes, infos that differ in form, custom data that HDF5 has no type for",
)
