"""`Recorder`: a gymnasium wrapper that records the episodes of a user's own loop to a dataset.

The loop gets the environment's values unchanged. The dataset gets the wrapped environment's observations, actions, rewards, end
flags, infos, and extra model outputs from `add_outputs`. An episode that the loop abandons is recorded as truncated, and
counted (`unfinished-episode`). Finished episodes go to the dataset writer immediately: a killed process loses the open shard
and the current episode.
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
    """Record the episodes of `env` to the dataset `out`, until it is closed.

    `with Recorder(gym.make("CartPole-v1"), "mine") as env:` and a loop of `env.reset` and `env.step`. Wrap it where the
    observations and actions to learn from pass: inside of wrappers that change them for the policy.

    The constructor raises OutputExists, UsageError, UnsupportedSpace, StorageError; `step` and `reset` raise BadData for values
    that no dataset can hold. Exceptions of the environment pass through.
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
        self._session = uuid.uuid4().hex[:8]  # unique episode ids, so that recordings can be merged
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
            **options,
        )
        self._obs: Tree = None  # latest observation: leaves (1, ...)
        self._info = NOTHING  # its info
        self._outputs: dict[str, Tree] = {}  # for the next step: leaves (1, ...)
        self._ended = self._t = 0  # finished episodes; steps of the current one
        self._is_under_way = False
        self._writer.__enter__()
        _open.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close; if the block raised, commit finished episodes as incomplete, so that `resume=True` can continue."""
        try:
            if kind is not None:
                self._commit(complete=False)
        finally:
            self.close()

    def add_outputs(self, **outputs: Any) -> None:
        """Set extra model outputs of the next step, such as `action_logp=-0.7`: numbers, arrays, or dicts of them. The names
        must be the same at every step."""
        self._outputs = {name: _row(value) for name, value in outputs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium. An unfinished episode is recorded as truncated."""
        observation, info = super().reset(seed=seed, options=options)
        self._cut()
        self._is_under_way, self._t = True, 0
        self._seen("reset", observation, info)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See gymnasium. Raises UsageError before `reset` and after `close`."""
        if not self._is_under_way or self not in _open:
            fix = "call env.reset() before each episode and close() at the end; put autoreset wrappers around Recorder"
            raise UsageError("step() was called outside of an episode", where=self._name, fix=fix)
        taken = map_leaves(
            np.copy, stacked_rows([self._fitted("action", self._take, action)])
        )  # the environment may overwrite it
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
        self._info = self._fitted(doing, lambda new: kept_info(new, self._infos), info)

    def _fitted(self, doing: str, fit: Callable[[Any], T], value: Any) -> T:
        """The result of `fit`. Raises BadData for a value that no dataset can hold."""
        try:
            return fit(value)
        except ValueError as err:
            fix = "return values of the spaces, rewards as numbers, flags as bools; infos='plain' drops other info entries"
            raise BadData(str(err), where=f"{self._name}: {doing}", fix=fix) from err

    def _end(self, terminated: bool, truncated: bool) -> None:
        """Write the finished episode."""
        episode = self._rows.end(0, terminated, truncated, rows_of(self._obs, 0), self._info)
        self._is_under_way = False
        count_dropped([episode], self._tally)
        self._writer.write(batch_of([episode], [f"{self._session}-{self._ended}"], self._spaces))
        self._ended += 1

    def _cut(self) -> None:
        """Record an abandoned episode as truncated, and count it."""
        if self._is_under_way and self._t and self in _open:
            self._tally.assume(UNFINISHED)
            self._end(terminated=False, truncated=True)

    def close(self) -> None:
        """Commit the recording, and close the environment. Further calls do nothing."""
        try:
            self._cut()
            self._commit(complete=True)
        finally:
            super().close()  # type: ignore[no-untyped-call]

    def _commit(self, *, complete: bool) -> Manifest | None:
        """Commit all finished episodes; None if already committed, or if there are none: then the folder is removed."""
        if self not in _open:
            return None
        _open.discard(self)
        try:
            if not self._writer.episodes_written:
                _log.warning("note: no episode has a step; nothing is written to %s", self.url)
                return None
            return self._writer.commit(complete=complete, episodes_lost=0)
        finally:
            self._writer.__exit__(None, None, None)


_open: set[Recorder] = set()


def _save_open() -> None:
    """At exit, commit finished episodes of recorders that were not closed, as incomplete."""
    for recorder in [*_open]:
        try:
            manifest = recorder._commit(complete=False)
        except (OfflineCliError, RuntimeError, OSError) as err:  # RuntimeError: no new threads at interpreter exit
            _log.warning("%s: the recorder was not closed, and some episodes could not be saved: %s", recorder.url, err)
            continue
        if manifest is not None:
            text = "%s: the recorder was not closed; %d episodes are saved as incomplete. Use it in a `with` block"
            _log.warning(text, recorder.url, manifest.counts.episodes)


# When atexit's functions run, threads can no longer be started; threading's run earlier.
getattr(threading, "_register_atexit", atexit.register)(_save_open)


def _row(value: Tree) -> Tree:
    """Copies with a leading axis: leaves (1, ...)."""
    return map_leaves(lambda leaf: np.array(leaf)[None], value)


def _environment(env: gym.Env[Any, Any]) -> EnvironmentRecord | None:
    """The manifest's record of how gymnasium made the environment, without arguments that JSON cannot hold."""
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
        options = ",".join(f"{key}={json.dumps(value)}" for key, value in _plain(wrapper.kwargs or {}).items())
        wrappers.append(path + (f":{options}" if options else ""))
    return EnvironmentRecord(spec.id, kwargs, tuple(wrappers))


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict[str, Any]()
    for key, value in arguments.items():
        try:
            plain |= {} if value is None else {key: json.loads(json.dumps(value))}
        except (TypeError, ValueError):
            _log.warning("note: the manifest omits the argument %s, which JSON cannot hold", key)
    return plain
