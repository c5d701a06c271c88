"""`Recorder`: a gymnasium wrapper that writes what a program's own loop plays to a dataset.

What the loop gets is what the environment returns, unchanged. Recorded are observations as the wrapped environment returns
them, actions as it takes them, rewards, ends, infos, and extra model outputs that `add_outputs` names. An episode that the
loop leaves before its end is kept as truncated, and counted (`unfinished-episode`). Whole episodes go to the dataset's writer
at once: a killed process loses the open shard, and one on its way.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import gymnasium as gym
import numpy as np

from offline_cli.checked_keywords import checked
from offline_cli.choices import MAX_BYTES_PER_FILE, Compression, Count, Infos, RowFormat
from offline_cli.datasets.manifest import IDENTITY, EnvironmentRecord, Manifest
from offline_cli.datasets.target_folder import check_target, dataset_to_append_to
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.fit import category_check, fitter
from offline_cli.errors import BadData, OfflineCliError, UsageError
from offline_cli.import_path import code_of
from offline_cli.playing.copies import NOTHING, kept_info
from offline_cli.policies.policy import Acted
from offline_cli.recording.episode_rows import EpisodeCollector, batch_of, count_dropped
from offline_cli.step_values import flag_of, reward_of
from offline_cli.storage.blanking import blanked, without_folders
from offline_cli.storage.locations import Location, open_location
from offline_cli.tally import UNFINISHED, Tally
from offline_cli.trees import Tree, map_leaves, rows_of, stacked_rows

ALL: Final = slice(None)
OF_WRITER: Final = ("format", "compression", "max_rows_per_file", "max_bytes_per_file", "overwrite", "resume", "allow_changes")
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """Writes what is played in `env` to the dataset `out`, until it is closed.

    `with Recorder(gym.make("CartPole-v1"), "mine") as env:` and a loop of `env.reset` and `env.step`. Put it where the actions
    and observations pass that are to be learned from: outside of wrappers that change them for the policy.

    Raises OutputExists, UsageError, UnsupportedSpace, StorageError when it is made; BadData from `step` and `reset` for values
    that no dataset can hold, and what the environment raises, as it is.
    """

    @checked
    def __init__(
        self,
        env: gym.Env[Any, Any],
        out: str | os.PathLike[str] | Location,
        *,
        env_id: str | None = None,
        policy: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        max_rows_per_file: Count | None = None,
        max_bytes_per_file: Count = MAX_BYTES_PER_FILE,
        compression: Compression = "zstd",
        resume: bool = False,
        force_unlock: bool = False,
        allow_changes: bool = False,
        overwrite: bool = False,
        format: RowFormat = "episodes",
        infos: Infos = "plain",
        append: bool = False,
    ) -> None:
        options = {name: value for name, value in locals().items() if name in OF_WRITER}
        super().__init__(env)
        place = open_location(out, storage_options)
        if append and overwrite:
            raise UsageError("append and overwrite are mutually exclusive", where=place.url, fix="give one of them")
        if not append:
            check_target(place, overwrite=overwrite, resume=resume, force_unlock=force_unlock)
        self.url, self._infos = place.url, infos
        self._name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        self._spaces = env.observation_space, env.action_space
        self._see = fitter(self._spaces[0])
        self._take, self._check = fitter(self._spaces[1], "an action"), category_check(self._spaces[1], "the action")
        self._session = uuid.uuid4().hex[:8]  # no two recordings share an id: they can be merged
        self._rows, self._tally = EpisodeCollector(1), Tally()
        played_by = {} if policy is None else {"policy": without_folders(blanked(policy))}
        identity = {**played_by, **code_of(env)}
        self._writer = DatasetWriter(
            place,
            observation_space=self._spaces[0],
            action_space=self._spaces[1],
            action_scale="env",
            environment=_environment(env) if env_id is None else EnvironmentRecord(env_id, {}),
            provenance={**played_by, IDENTITY: identity},
            base=dataset_to_append_to(place, resume=resume) if append else None,
            tally=self._tally,
            identity=identity,
            count_not_finite=True,
            **options,
        )
        self._obs: Tree = None  # leaves (1, ...): the latest
        self._info = NOTHING  # that came with it
        self._outputs: dict[str, Tree] = {}  # of the next step: leaves (1, ...)
        self._ended = self._t = 0  # episodes; steps of the one under way
        self._is_under_way = False
        self._writer.__enter__()
        self._before = len(self._writer.ids_written) if resume else 0
        _open.add(self)

    @property
    def episodes_recorded(self) -> int:
        """Whole episodes so far; with `resume`, those that are there already included: a loop of seeds goes on there."""
        return self._before + self._ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """As `close`; where the block raises, what is whole is committed as incomplete, which `resume=True` continues."""
        try:
            if kind is not None:
                self._commit(complete=False)
        finally:
            self.close()

    def add_outputs(self, **outputs: Any) -> None:
        """Extra model outputs of the next step, `action_logp=-0.7` for one: numbers, arrays, dicts of them; the same names
        before every step."""
        self._outputs = {name: _row(value) for name, value in outputs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium. An episode that is not over is kept as truncated."""
        observation, info = super().reset(seed=seed, options=options)
        self._cut()
        self._is_under_way, self._t = True, 0
        self._seen("reset", observation, info)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See gymnasium. Raises UsageError without a `reset` before an episode."""
        if not self._is_under_way or self not in _open:
            fix = "env.reset() before an episode, close() after the last; a wrapper that resets by itself goes around this one"
            raise UsageError("a step outside of an episode", where=self._name, fix=fix)
        taken = map_leaves(np.copy, stacked_rows([self._fitted("action", self._take, action)]))  # it may be written into
        self._fitted("action", self._check, taken)
        outputs, self._outputs = self._outputs, {}
        observation, reward, terminated, truncated, info = super().step(action)
        rewards = np.array([self._fitted("step", reward_of, reward)])
        flags = self._fitted("step", flag_of, terminated), self._fitted("step", flag_of, truncated)
        self._rows.step(ALL, self._obs, [self._info], Acted(taken, taken, outputs), rewards)
        self._t += 1
        self._seen("step", observation, info)
        if any(flags):
            self._end(*flags)
        return observation, reward, terminated, truncated, info

    def _seen(self, doing: str, observation: Any, info: Mapping[str, Any]) -> None:
        self._obs = _row(self._fitted(doing, self._see, observation))
        self._info = self._fitted(doing, lambda told: kept_info(told, self._infos), info)

    def _fitted(self, doing: str, fit: Callable[[Any], T], value: Any) -> T:
        """What `fit` gives. Raises BadData for a value that no dataset can hold, which environment or loop gave."""
        try:
            return fit(value)
        except ValueError as err:
            fix = "return what the spaces say, rewards as numbers, ends as bools; infos='plain' leaves the others out"
            raise BadData(str(err), where=f"{self._name}: {doing}", fix=fix) from err

    def _end(self, terminated: bool, truncated: bool) -> None:
        """Hand the episode to the writer."""
        episode = self._rows.end(0, terminated, truncated, rows_of(self._obs, 0), self._info)
        self._is_under_way = False
        count_dropped([episode], self._tally)
        self._writer.write(batch_of([episode], [f"{self._session}-{self._ended}"], self._spaces))
        self._ended += 1

    def _cut(self) -> None:
        """The caller leaves an episode before its end: it is kept as truncated, and counted."""
        if self._is_under_way and self._t and self in _open:
            self._tally.assume(UNFINISHED)
            self._end(terminated=False, truncated=True)

    def close(self) -> None:
        """Commit what was recorded, and close the environment. A second call changes nothing more."""
        try:
            self._cut()
            self._commit(complete=True)
        finally:
            super().close()  # type: ignore[no-untyped-call]

    def _commit(self, *, complete: bool) -> Manifest | None:
        """Commit all whole episodes; None where that is done already, or there is none: then nothing is left there."""
        if self not in _open:
            return None
        _open.discard(self)
        try:
            if not self._writer.episodes_written:
                _log.warning("note: no episode had a step, so that nothing is written to %s", self.url)
                return None
            return self._writer.commit(complete=complete, episodes_lost=0)
        finally:
            self._writer.__exit__(None, None, None)


_open: set[Recorder] = set()


def _save_open() -> None:
    """The program ends: commit what is whole of recorders that were not closed, as incomplete."""
    for recorder in [*_open]:
        try:
            manifest = recorder._commit(complete=False)
        except (OfflineCliError, RuntimeError, OSError) as err:  # RuntimeError: the interpreter starts no threads any more
            _log.warning("%s: the recorder was not closed, and not all of it could be saved: %s", recorder.url, err)
            continue
        if manifest is not None:
            text = "%s: the recorder was not closed; %d episodes are saved as incomplete. Next time, open it in a `with`"
            _log.warning(text, recorder.url, manifest.counts.episodes)


# While the interpreter ends, threads cannot be started any more when atexit's functions run; these run before.
getattr(threading, "_register_atexit", atexit.register)(_save_open)


def _row(value: Tree) -> Tree:
    """Leaves (1, ...), copied."""
    return map_leaves(lambda leaf: np.array(leaf)[None], value)


def _environment(env: gym.Env[Any, Any]) -> EnvironmentRecord | None:
    """For the manifest: how gymnasium made the environment; arguments that JSON cannot hold are left out."""
    spec = env.spec
    if spec is None:
        return None
    kwargs = _plain(spec.kwargs)
    registered = gym.registry.get(spec.id)
    if registered is not None and registered.max_episode_steps != spec.max_episode_steps:
        kwargs["max_episode_steps"] = spec.max_episode_steps
    wrappers = []
    for wrapper in spec.additional_wrappers:
        module, _, name = wrapper.entry_point.partition(":")
        path = name if module.startswith("gymnasium.wrappers.") else f"{module}:{name}"
        told = ",".join(f"{key}={json.dumps(value)}" for key, value in _plain(wrapper.kwargs or {}).items())
        wrappers.append(path + (f":{told}" if told else ""))
    return EnvironmentRecord(spec.id, kwargs, tuple(wrappers))


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict[str, Any]()
    for key, value in arguments.items():
        try:
            plain |= {} if value is None else {key: json.loads(json.dumps(value))}
        except (TypeError, ValueError):
            _log.warning("note: the argument %s is not kept in the manifest, as JSON has no form for it", key)
    return plain
