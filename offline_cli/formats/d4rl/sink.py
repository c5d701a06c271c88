"""Episodes as one file of D4RL's layout: flat arrays, `terminals` and `timeouts`.

`next_observations` keep the last observation of each episode, unless the source is D4RL's and had none. Extra model outputs are
written under `infos/`, or where a source of this layout had them. Not kept: ids, infos and custom data of episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.d4rl.reader import FORMAT, INFOS, LOGP, NEXT, TIMEOUTS
from offline_cli.formats.hdf5.our_metadata import OURS, metadata_text
from offline_cli.formats.hdf5.writing import EpisodeSink, check_file, checked_key, count_left_out, said_by_source
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.storage.locations import Location
from offline_cli.trees import Tree, equal_values

__all__ = ["D4RL"]

CHUNK: Final = 1 << 20  # bytes


class D4rlSink(EpisodeSink):
    """A `Sink`; see above."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, FORMAT)
        said = said_by_source(context, FORMAT)
        self._is_theirs = bool(said)
        self._has_next = bool(said.get("next", True))
        self._has_timeouts = bool(said.get("timeouts", True))
        self._opens_end = said.get("open_end") is True
        forms, names = said.get("forms"), said.get("names")
        self._forms: Mapping[str, Any] = forms if isinstance(forms, dict) else {}
        self._names: Mapping[str, Any] = names if isinstance(names, dict) else {}
        self._timeouts: list[NDArray[np.bool_]] = []

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: rows at the end of each array."""
        count_left_out(batch, self.context.tally, finals=self._has_next)
        if not self._is_theirs:
            self.context.tally.assume("eps-id-not-kept", len(batch))
        terminateds, truncateds = batch.step_flags()
        self._append("observations", batch.acted_obs(view=True))
        if self._has_next:
            self._append(NEXT, batch.next_obs(view=True))
        self._append("actions", batch.actions)
        self._append("rewards", self._formed("rewards", batch.rewards))
        self._append("terminals", self._formed("terminals", terminateds))
        self._timeouts.append(truncateds)
        theirs = {value: name for name, value in LOGP.items()}
        for name, tree in batch.extra.items():
            known = self._names.get(name)
            self._append(known if isinstance(known, str) else f"{INFOS}{theirs.get(name, name)}", tree)
        self.count(batch)

    def _formed(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """In the dtype and shape that the source had; rewards that it does not hold are counted."""
        said = self._forms.get(name)
        if not (isinstance(said, list) and len(said) == 2 and said[1] in ([], [1]) and said[0] in FORMS):
            return values
        with np.errstate(over="ignore"):
            formed = values.astype(said[0])
        if name == "rewards":
            self.context.tally.assume("rewards-rounded", int((~equal_values(formed.astype(np.float64), values)).sum()))
        return formed.reshape(-1, *said[1])

    def _append(self, name: str, tree: Tree) -> None:
        if isinstance(tree, (dict, tuple)):
            for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
                self._append(f"{name}/{checked_key(str(key), name)}", part)
            return
        root = self._file.root
        if name not in root:
            row = max(1, int(tree.dtype.itemsize * np.prod(tree.shape[1:], dtype=np.int64)))
            chunks = (max(1, CHUNK // row), *tree.shape[1:])
            root.create_dataset(name, (0, *tree.shape[1:]), tree.dtype, maxshape=(None, *tree.shape[1:]), chunks=chunks)
        dataset = root[name]
        first = dataset.shape[0]
        dataset.resize(first + len(tree), axis=0)
        dataset[first:] = tree

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        timeouts = np.concatenate([np.zeros(0, np.bool_), *self._timeouts])
        if self._opens_end and len(timeouts):
            timeouts[-1] = False  # the recording ended there, and no time limit did
        if self._has_timeouts or timeouts.any():
            self._file.root[TIMEOUTS] = self._formed(TIMEOUTS, timeouts)
        self._file.root.attrs[OURS] = metadata_text(self.context)
        self._file.commit()
        return self.written(1, self._file.bytes)


FORMS: Final = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")

D4RL: Final = SinkKind(
    FORMAT,
    "an HDF5 file of D4RL's layout",
    D4rlSink,
    check_file,
    {"overwrite"},
    "steps, last observations, extra outputs; not ids, infos, custom data, clocks",
)
