"""Episodes as a Minari dataset: `--out D` gets `D/data`, which Minari opens as it is (`MinariDataset("D/data")`).

A folder of Minari's own root is a dataset of that id: `--out ~/.minari/datasets/walker/expert-v0`. Images are stored as they
are, without JPEG. Episodes are numbered from 0; an id that is no such number is kept as the attribute `eps_id`, and so are the
ids of agents. Extra model outputs are datasets that Minari does not look at (`extra_model_outputs`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.hdf5.writing import Hdf5Sink, put
from offline_cli.formats.minari.metadata import EXTRA, FORMAT, IDS, MAIN, METADATA, document_of
from offline_cli.formats.sink import SinkContext, SinkKind, Written, count_left_out, refuse_folder
from offline_cli.spaces import check_supported
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole
from offline_cli.tally import Tally

DATA: Final = "data"
TUPLE_KEY: Final = "_index_{}"


class MinariSink(Hdf5Sink):
    """A `Sink`; see above."""

    extra = FORMAT

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, FORMAT)
        for space in (context.observation_space, context.action_space):
            check_supported(space, where=f"--to {FORMAT}")

    @property
    def place(self) -> Location:
        """See `Hdf5Sink`."""
        return self.target.join(DATA).join(MAIN)

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: a group for each episode."""
        tally, returns = self.context.tally, batch.returns
        count_left_out(batch, tally, kept=None, ids=True, infos=True, agents=True)
        terminations, truncations = batch.step_flags()
        for at in range(len(batch)):
            number = self.episodes + at
            group = self.root.create_group(f"episode_{number}")
            rows = slice(int(batch.starts[at]), int(batch.starts[at + 1]))
            seen = slice(rows.start + at, rows.stop + at + 1)
            put(group, "observations", batch.obs, seen, tuple_key=TUPLE_KEY)
            put(group, "actions", batch.actions, rows, tuple_key=TUPLE_KEY)
            for name, tree in batch.extra.items():
                put(group, f"{EXTRA}/{name}", tree, rows, tuple_key=TUPLE_KEY)
            rewards = batch.rewards[rows]
            for name, values in {"rewards": batch.rewards, "terminations": terminations, "truncations": truncations}.items():
                group[name] = values[rows]
            infos = group.create_group("infos")
            for path, column in _info_columns([] if batch.infos is None else batch.infos[seen], tally):
                infos[path] = column
            data = {} if batch.custom_data is None else dict(_flat(batch.custom_data[at]))
            said = {
                "id": number,
                "total_steps": len(rewards),
                **_statistics(rewards, float(returns[at])),
                **_ids(batch, at, number),
            }
            self.put_attributes(group, {**data, **said})
        self.count(batch)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`: metadata.json, without which nothing is a dataset, comes last."""
        folder = self.target.join(DATA)
        written = self.store()
        counts = {"total_episodes": self.episodes, "total_steps": self.steps, "dataset_size": round(written.bytes / 1e6, 1)}
        document = document_of(self.context, self.said_by_source(), self.target.name, counts)
        data = json.dumps(document, ensure_ascii=False).encode()
        write_whole(folder.join(METADATA), data, folder=folder)
        return Written(self.episodes, self.steps, 2, written.bytes + len(data))


def _ids(batch: EpisodeBatch, at: int, number: int) -> dict[str, str]:
    """Of one episode, those that its number does not say."""
    kept = (batch.ids if batch.ids[at] != str(number) else None, batch.agent_ids, batch.module_ids)
    found = {key: None if names is None else names[at] for key, names in zip(IDS, kept, strict=True)}
    return {key: name for key, name in found.items() if name is not None}


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by name, those within objects by `/`."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _info_columns(infos: Sequence[Mapping[str, Any]], tally: Tally, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Arrays, or texts, of keys that all infos have, those of nested infos by `/`; other keys are named as left out."""
    for key in dict.fromkeys(key for info in infos for key in info):
        path, values = f"{prefix}{key}", [info[key] for info in infos if key in info]
        is_whole = len(values) == len(infos) and "/" not in key and bool(key)
        if is_whole and all(isinstance(value, Mapping) for value in values):
            yield from _info_columns(values, tally, f"{path}/")
        elif is_whole and all(isinstance(value, str) for value in values):
            yield path, values
        elif is_whole and (array := _one_array(values)) is not None:
            yield path, array
        else:
            tally.drop_column(f"infos/{path}", "Minari keeps infos that have one value, of one form, for each observation")


def _one_array(values: Sequence[Any]) -> NDArray[Any] | None:
    try:
        array = np.asarray(values)
    except ValueError:
        return None
    return array if array.dtype.kind in "biuf" else None


def _statistics(rewards: NDArray[np.float64], total: float) -> dict[str, float]:
    """What Minari's recorder notes of each episode."""
    if not len(rewards):
        return {"rewards_sum": 0.0}
    figures = {"mean": rewards.mean(), "std": rewards.std(), "max": rewards.max(), "min": rewards.min()}
    return {"rewards_sum": total, **{f"rewards_{name}": float(value) for name, value in figures.items()}}


MINARI_SINK: Final = SinkKind(
    FORMAT,
    "a Minari dataset in HDF5",
    MinariSink,
    refuse_folder,
    keeps="all but clocks, ids of multi-agent episodes, infos that differ in form, custom data that HDF5 has no type for",
)
