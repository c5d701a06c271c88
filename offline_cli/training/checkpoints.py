"""The checkpoints of a run, of which the newest is kept, and the description of its policy.

    RUN/checkpoints/000000500/tensors.safetensors    weights, optimizer and generators
    RUN/checkpoints/000000500/state.json             counters; written last: a checkpoint with it is whole

No folder is renamed, which object stores cannot do: both files are put under their names whole. The previous checkpoint is
removed only then, its state.json first. So a kill at any moment leaves the old one or the new one, and so does a power cut: the
names of the new one are on the disk before the old one is removed.

A folder of any other name, such as a copy that somebody made, is no checkpoint and stays. Of a checkpoint the two files are
removed, and then the folder if nothing else is in it; links are left as they are.

* `TrainState`: how far a run is: everything of a checkpoint that is not a tensor.
* `describe_policy`, `learned_bytes`: the policy of a run as files: description in JSON, weights in safetensors, what connector
  pieces learned in msgpack. `policies/run_policy.py` reads them.
* `check_same_learned`: whether connector pieces learned the same as when a run began, which is required to resume it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.datasets.manifest import WRAPPERS, Environment
from offline_cli.datasets.ownership import is_link, keep_names
from offline_cli.errors import BadConfig, StorageNotFound
from offline_cli.modules.images import NATURE, encoder_package
from offline_cli.modules.network import network_package
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID
from offline_cli.policies.run_files import CHECKPOINTS, STATE, TENSORS, checkpoint_folders, newest_checkpoint
from offline_cli.policies.run_policy import (
    ENCODER_PACKAGE,
    ENVIRONMENTS,
    FORMAT,
    GIVEN_SPACE,
    NETWORK,
    VERSION,
    described_form,
)
from offline_cli.spaces import space_to_json
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole
from offline_cli.training.config_model import BCConfig
from offline_cli.training.training_data import TrainingData

__all__ = ["Best", "Checkpoints", "TrainState", "check_same_learned", "describe_policy", "learned_bytes"]

TOLERANCE: Final = 1e-9  # relative: sums of the same numbers differ in the last digits from one processor to the next


@dataclass(frozen=True, slots=True)
class Best:
    """The check at which the policy was best so far."""

    score: float  # higher is better: a mean return, or minus a held-out loss
    update: int
    figures: Mapping[str, float]  # that check's


@dataclass(slots=True)
class TrainState:
    """Counters of one run; `update` is also the position in the data."""

    update: int = 0  # updates made
    settled: int = 0  # the update number up to which rows are written and checks are made
    summed: int = 0  # updates in the loss sum since the last row
    samples: int = 0  # steps learned from, padding not counted
    train_seconds: float = 0.0  # in updates alone
    seconds: float = 0.0  # checks and checkpoints included
    loss: float | None = None  # the sum of all losses, as means over the updates of the last row; of cloning nats per action
    losses: dict[str, float] = field(default_factory=dict)  # each by its name
    figures: dict[str, float] = field(default_factory=dict)  # of the last check
    best: Best | None = None
    best_val_loss: float | None = None
    stale_checks: int = 0  # checks since the held-out loss was last better
    stopped_by: str | None = None  # "target", "patience", "bound"; None: still training
    metrics_bytes: int = 0  # length of metrics.jsonl that belongs to this state
    # What a resumed run must share with this one, besides its configuration.
    data: str = ""  # TrainingData.digest
    seen: Mapping[str, Any] = field(default_factory=dict)  # TrainingData.seen
    threads: int = 1
    device: str = "cpu"
    pipeline: str = ""  # what was given for it, by name; empty: the default pipeline
    code: Mapping[str, str] = field(default_factory=dict)  # of environment, network, algorithm and pieces, see `code_of`
    changes: list[str] = field(default_factory=list)  # of it while the run was resumed, in words
    init_from: Mapping[str, Any] = field(default_factory=dict)  # the run that it began with (`Start.told`); empty: none

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        told = asdict(self)
        return told if self.init_from else {name: value for name, value in told.items() if name != "init_from"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainState:
        """The state that `as_dict` gave. Raises TypeError for unknown names, and for values of the wrong kind."""
        plain = dict(values)
        if plain.get("best") is not None:
            plain["best"] = Best(**plain["best"])
        state = cls(**plain)
        wrong = [name for name, is_right in _KINDS.items() if not is_right(getattr(state, name))]
        if state.best is not None and not (_is_number(state.best.score) and _is_count(state.best.update)):
            wrong.append("best")
        if wrong:
            raise TypeError(f"values of the wrong kind: {', '.join(wrong)}")
        return state


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_figures(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


_KINDS: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("update", "settled", "summed", "samples", "stale_checks", "metrics_bytes"), _is_count),
    "threads": lambda value: _is_count(value) and value > 0,
    **dict.fromkeys(("train_seconds", "seconds"), _is_number),
    **dict.fromkeys(("loss", "best_val_loss"), lambda value: value is None or _is_number(value)),
    **dict.fromkeys(("data", "device", "pipeline"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("figures", "losses"), _is_figures),
    "best": lambda value: value is None or _is_figures(value.figures),
    **dict.fromkeys(("code", "init_from"), lambda value: isinstance(value, dict)),
    "changes": lambda value: isinstance(value, list),
    "stopped_by": lambda value: value is None or isinstance(value, str),
}


def describe_policy(data: TrainingData, config: BCConfig) -> dict[str, Any]:
    """What `load_policy` needs besides the weights and `learned_bytes` of a new run, as JSON values.

    Raises BadConfig for a pipeline file with options that JSON does not have.
    """
    name = config.network["name"]
    options = {key: value for key, value in config.network_options.items() if key != "dropout"}  # none of a policy that plays
    package = network_package(name)
    of_encoder = encoder_package(str(options.get("encoder", NATURE)))
    told: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "observation_space": space_to_json(data.observation_space),
        "action_space": space_to_json(data.action_space),
        "action_scale": data.action_scale,
        NETWORK: {"name": name, **options},
        **({} if package is None else {"package": package}),
        **({} if of_encoder is None else {ENCODER_PACKAGE: of_encoder}),
        **described_form(data.learner.policy.action_head),
        "environment": config.env,
    }
    known = {one.id: one for one in (data.recorded_in, data.played_in) if one is not None}  # the latter in place of the former
    if known:
        kept = filter(None, map(Environment.of, known.values()))
        told[ENVIRONMENTS] = [{**one.as_json(), WRAPPERS: list(one.wrappers)} for one in kept]
    module = data.seen.get("module")
    if module not in (None, DEFAULT_MODULE_ID):
        told["module"] = module  # whose episodes it learned from, for people: a run holds one policy
    if data.trained is None:
        return told
    return told | {GIVEN_SPACE: space_to_json(data.given_space), "pipeline": data.trained.to_json()}


def learned_bytes(data: TrainingData) -> bytes | None:
    """What the pieces of the learner pipeline learned, for the run folder; None: the policy plays without pieces."""
    return None if data.trained is None else data.trained.state_bytes()


class Checkpoints:
    """Those of the run in the folder `run`, which has them in a folder of their own."""

    def __init__(self, run: Location) -> None:
        self._run = run
        self._place = run.join(CHECKPOINTS)

    def newest(self) -> Location | None:
        """The folder of the newest whole checkpoint; None: there is none. Raises StorageError."""
        return newest_checkpoint(self._run)

    def begin(self, update: int, tensors: bytes) -> tuple[Location, list[Location]]:
        """Write all of a checkpoint but its state; gives its folder, and those that it replaces. Raises StorageError."""
        older = checkpoint_folders(self._run)
        folder = self._place.join(_new_name(update, {other.name for other in self._place.children()}))
        folder.make_folder()
        write_whole(folder.join(TENSORS), tensors, folder=self._run)
        return folder, older

    def commit(self, folder: Location, older: list[Location], state: bytes) -> None:
        """Write its state, then remove the older ones. Raises StorageError."""
        write_whole(folder.join(STATE), state, folder=self._run)
        keep_names(self._place, self._run)
        for other in older:
            _remove(other, STATE)
            _remove(other, TENSORS)
            other.remove_empty_folder()
        if older:
            keep_names(self._place)

    def remove_all(self) -> None:
        """Remove them, the newest last, so that a kill on the way leaves that one or none, and a power cut none without its
        tensors. Raises StorageError.
        """
        gone = checkpoint_folders(self._run)
        for name in (STATE, TENSORS):
            for folder in gone:
                _remove(folder, name)
            keep_names(*gone)
        for folder in gone:
            folder.remove_empty_folder()
        if gone:
            keep_names(self._place)


def _new_name(update: int, taken: set[str]) -> str:
    """A name that sorts after all of `taken` that are of `update` or of fewer updates."""
    name = f"{update:09d}"
    while name in taken:
        name += "a"
    return name


def _remove(folder: Location, name: str) -> None:
    """Remove a file that most likely exists, without checking first."""
    file = folder.join(name)
    if not is_link(file):
        with suppress(StorageNotFound):
            file.ask("removing it", partial(file.fs.rm_file, file.path))


def check_same_learned(stored: Mapping[str, Any] | None, trained: PipelineSpec | None, *, where: str) -> None:
    """Raise BadConfig, naming the pieces, unless they learned what is `stored`; None: the policy plays without pieces."""
    before, now = stored or {}, trained.state if trained is not None else {}
    problems = [
        f"piece {name} of the learner pipeline learned something else than when the run began"
        for name in dict.fromkeys((*before, *now))
        if name not in before or name not in now or not _agree(before[name], now[name])
    ]
    if problems:
        fix = "resume with the pipeline that the run was started with, or train again with --overwrite"
        raise BadConfig.of(problems, where=where, fix=fix)


def _agree(one: Any, two: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(_agree(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(_agree, one, two))
    first, second = np.asarray(one), np.asarray(two)
    if first.shape != second.shape or "f" not in (first.dtype.kind, second.dtype.kind):
        return bool(np.array_equal(first, second))
    return bool(np.allclose(first, second, rtol=TOLERANCE, atol=0.0, equal_nan=True))
