"""Steps that a program's own loop plays, on their way into a dataset: what is behind `Recorder`.

Slots hold an episode each. A step is recorded in three calls: `act` before the environment steps, `stepped` after it, `ended`
for slots whose episode is over; an environment that raises in between leaves no half step. Whole episodes go to the dataset's
writer as soon as they fill a shard: a killed process loses the open one, and one on its way.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.datasets.manifest import IDENTITY, Environment, Manifest
from offline_cli.datasets.shard_sequence import dataset_to_append_to
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.errors import BadData, OfflineCliError, UsageError
from offline_cli.files.blanking import blanked, without_folders
from offline_cli.files.locations import Location, open_location
from offline_cli.policies.policy import Acted
from offline_cli.recording.step_store import StepStore
from offline_cli.spaces import Space
from offline_cli.tally import UNFINISHED, Tally
from offline_cli.trees import Tree

__all__ = ["LiveEpisodes", "broken"]

Index = NDArray[np.int64]
Rows = NDArray[Any]
CLOSING: Final = "close the recorder, or open it in a `with`"
_log = logging.getLogger(__name__)


class LiveEpisodes:
    """The episodes of S slots, from a caller's steps to dataset `out`, which is open from the start until `close`."""

    def __init__(
        self,
        out: str | os.PathLike[str] | Location,
        slots: int,
        spaces: tuple[Space, Space],
        environment: Environment | None,
        code: Mapping[str, str],
        options: Mapping[str, Any],
    ) -> None:
        """`spaces`: of one slot's observations and actions. `code`: the environment's, see `code_of`. Raises as `DatasetWriter`
        does."""
        place = open_location(out, options["storage_options"])
        if options["append"] and options["overwrite"]:
            raise UsageError("append and overwrite are mutually exclusive", where=place.url, fix="give one of them")
        base = dataset_to_append_to(place, resume=options["resume"]) if options["append"] else None
        tally = Tally()
        policy = {} if options["policy"] is None else {"policy": without_folders(blanked(options["policy"]))}
        identity = {**policy, **code}
        self._writer = DatasetWriter(
            place,
            format=options["format"],
            observation_space=spaces[0],
            action_space=spaces[1],
            action_scale="env",
            environment=environment,
            provenance={**policy, IDENTITY: identity},
            compression=options["compression"],
            max_rows_per_file=options["max_rows_per_file"],
            max_bytes_per_file=options["max_bytes_per_file"],
            overwrite=options["overwrite"],
            resume=options["resume"],
            base=base,
            tally=tally,
            identity=identity,
            allow_changes=options["allow_changes"],
        )
        self.url = place.url
        self.playing = np.zeros(slots, np.bool_)  # (S,) an episode is under way there, of a step at least
        self.at_start = np.zeros(slots, np.bool_)  # (S,) a first observation is there, and no step yet
        self.outputs: dict[str, Tree] = {}  # extra model outputs of the next step: leaves (S, ...)
        self._tally = tally
        self._named: frozenset[str] | None = None  # extra model outputs that every step has
        self._begun = 0
        self._format, self._max_rows = options["format"], options["max_rows_per_file"]
        self._steps = np.zeros(slots, np.int64)  # (S,) of the episode that is under way
        self._whole = self._handed = 0  # rows of whole episodes, and of those that the writer has
        session = uuid.uuid4().hex[:8]  # no two recordings share an id: they can be merged
        self._store = StepStore(slots, spaces, lambda numbers: tuple(f"{session}-{number}" for number in numbers.tolist()))
        self._closed = False
        self._lock = threading.Lock()
        self._writer.__enter__()
        self.episodes = len(self._writer.ids_written) if options["resume"] else 0  # whole ones
        _OPEN.add(self)

    # ---- one step ----

    def act(self, obs: Tree, infos: Rows | None, actions: Tree) -> None:
        """Observations that slots are at and the actions that follow: leaves (S, ...). Raises BadData, UsageError."""
        if self._closed:
            raise UsageError("a step after the recorder was closed", where=self.url, fix="close it after the last step")
        outputs, self.outputs = self.outputs, {}
        if self._named is None:
            self._named = frozenset(outputs)
        elif outputs.keys() != self._named:
            differing = ", ".join(sorted(outputs.keys() ^ self._named))
            what = f"extra model outputs are of every step or of none, and this one differs from the first: {differing}"
            raise BadData(what, where=self.url, fix="call add_outputs with the same names before each step")
        self._store.act(obs, infos, Acted(actions, actions, outputs))

    def stepped(self, rewards: Rows, live: NDArray[np.bool_]) -> None:
        """The slots that are `live` have taken the step."""
        first = np.flatnonzero(self.at_start & live)
        if len(first):
            self._store.begin(first, self._begun + np.arange(len(first)))
            self._begun += len(first)
            self.at_start[first] = False
            self.playing[first] = True
            self._steps[first] = 0
        self._steps += 1
        self._store.reward(rewards)

    def ended(self, slots: Index, flags: tuple[Rows, Rows], finals: Tree, infos: Rows | None) -> None:
        """The episodes of these k slots are over; flags: terminated and truncated, (k,) each; finals: leaves (k, ...),
        arrays that nothing else changes."""
        if len(slots):
            self._store.end(slots, flags, finals, infos)
            self.playing[slots] = False
            self.episodes += len(slots)
            self._whole += len(slots) if self._format == "episodes" else int(self._steps[slots].sum())

    def flush(self) -> None:
        """Write what is whole, where it fills a shard or the store. Raises as `DatasetWriter.write` does."""
        if self._store.full or (self._max_rows and self._whole // self._max_rows > self._handed // self._max_rows):
            self._write()

    def cut(self, slots: Index, finals: Tree, infos: Rows | None) -> None:
        """The caller leaves these episodes before their end: they are kept as truncated, and counted."""
        if len(slots) and not self._closed:
            self._tally.assume(UNFINISHED, len(slots))
            self.ended(slots, (np.zeros(len(slots), np.bool_), np.ones(len(slots), np.bool_)), finals, infos)

    # ---- many ----

    def close(self, *, complete: bool) -> Manifest | None:
        """Commit all whole episodes; None where that is done already, or there is none: then nothing is left there.

        `complete`: whether all that was to be recorded has been. Raises as `DatasetWriter` does.
        """
        with self._lock:
            if self._closed:
                return None
            self._closed = True
        _OPEN.discard(self)
        with ExitStack() as held:
            held.push(self._writer)
            self._write()
            if not self._writer.episodes_written:
                _log.warning("note: no episode had a step, so that nothing is written to %s", self.url)
                return None
            return self._writer.commit(complete=complete, episodes_lost=0, count_not_finite=True)

    def _write(self) -> None:
        self._handed = self._whole
        batch = self._store.take() if self._begun else None
        if batch is not None:
            self._writer.write(batch)

    def save(self) -> None:
        """The program ends with the recorder open: commit what is whole, as incomplete."""
        try:
            manifest = self.close(complete=False)
        except (OfflineCliError, RuntimeError, OSError) as err:  # RuntimeError: the interpreter starts no threads any more
            _log.warning("%s: the recorder was not closed, and not all of it could be saved: %s", self.url, err)
            return
        if manifest is not None:
            counts = manifest.counts
            text = "%s: the recorder was not closed; %d episodes are saved as incomplete. Next time, %s"
            _log.warning(text, self.url, counts.episodes, CLOSING)


def _save_open() -> None:
    for live in [*_OPEN]:
        live.save()


_OPEN: Final[set[LiveEpisodes]] = set()
# While the interpreter ends, threads cannot be started any more when atexit's functions run; these run before.
getattr(threading, "_register_atexit", atexit.register)(_save_open)


def broken(err: ValueError, doing: str, where: str) -> BadData:
    """A value that no dataset can hold. Where it comes from is the caller's own environment or action."""
    return BadData(str(err), where=f"{where}: {doing}", fix="return what the spaces say, rewards as numbers, ends as bools")
