"""Stand-ins for the packages of trackers, which tests do not install: they keep what they are told, and fail when told to."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

__all__ = ["TRACKERS", "Kept", "kept"]

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
Metric = namedtuple("Metric", "key value timestamp step")
Param = namedtuple("Param", "key value")


@dataclass
class Kept:
    """What one package was told."""

    opened: list[dict[str, Any]] = field(default_factory=list)  # arguments of each opening
    ids: list[str] = field(default_factory=list)  # of the run that each opening is of
    configs: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    closed: list[Any] = field(default_factory=list)  # how each run ended
    fails: str = ""  # "open" | "log" | "close": where it raises

    def reach(self, place: str) -> None:
        """Raise where it is told to."""
        if self.fails == place:
            raise OSError(f"no {place}")

    def open(self, id_: str, config: Any, **given: Any) -> None:
        """A run is opened."""
        self.reach("open")
        self.opened.append(given)
        self.ids.append(id_)
        if config:
            self.configs.append(dict(config))

    def log(self, figures: dict[str, float], step: int) -> None:
        """A row."""
        self.reach("log")
        self.rows.setdefault(step, {}).update(figures)

    def close(self, how: Any) -> None:
        """The end."""
        self.closed.append(how)
        self.reach("close")


class Writer:
    """Of tensorboard."""

    def __init__(self, kept: Kept, log_dir: str, purge_step: int | None = None) -> None:
        self.kept = kept
        kept.open(log_dir, None, log_dir=log_dir, purge_step=purge_step)

    def add_text(self, tag: str, text: str, step: int) -> None:
        lines = (line.strip().partition(" = ") for line in text.splitlines())
        self.kept.configs.append({name: value for name, _, value in lines})

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.kept.log({name: value}, step)

    def close(self) -> None:
        self.kept.close("closed")


class Run:
    """Of wandb and trackio."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept

    def log(self, figures: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.kept.log(figures, step)

    def finish(self, exit_code: int = 0) -> None:
        self.kept.close(exit_code)


class Client:
    """Of mlflow."""

    def __init__(self, kept: Kept, tracking_uri: str) -> None:
        self.kept, self.uri = kept, tracking_uri

    def get_experiment_by_name(self, name: str) -> Any:
        return None

    def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
        return name

    def create_run(self, experiment_id: str, run_name: str | None = None) -> Any:
        self.kept.open(f"run of {experiment_id}", None, uri=self.uri)
        return SimpleNamespace(info=SimpleNamespace(run_id=f"run of {experiment_id}"))

    def update_run(self, run_id: str, status: str) -> None:
        assert status == "RUNNING"
        self.kept.open(run_id, None, uri=self.uri)

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert run_id == self.kept.ids[-1]
        if params:
            self.kept.configs.append({one.key: one.value for one in params})
        for one in metrics:
            self.kept.log({one.key: one.value}, one.step)

    def set_terminated(self, run_id: str, status: str) -> None:
        self.kept.close(status)


def module(name: str, **members: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(members)
    return made


@pytest.fixture
def kept() -> Iterator[dict[str, Kept]]:
    """Each tracker's package as if it were installed; what it was told, by name."""
    found = {name: Kept() for name in TRACKERS}

    def init(package: str, key: str, given: dict[str, Any]) -> Run:
        found[package].open(given[key], given.pop("config"), **given)
        return Run(found[package])

    made = [
        module("tensorboard"),
        module("torch.utils.tensorboard", SummaryWriter=lambda *args, **given: Writer(found["tensorboard"], *args, **given)),
        module("wandb", init=lambda **given: init("wandb", "id", given)),
        module("mlflow", MlflowClient=lambda tracking_uri: Client(found["mlflow"], tracking_uri)),
        module("mlflow.entities", Metric=Metric, Param=Param),
        module("trackio", init=lambda **given: init("trackio", "name", given)),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for one in made:
            patch.setitem(sys.modules, one.__name__, one)
        for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
            patch.delenv(name, raising=False)
        patch.setenv("TRACKIO_DIR", "")  # so that it is put back
        patch.delenv("TRACKIO_DIR")
        yield found
