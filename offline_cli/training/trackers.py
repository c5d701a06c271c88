"""Experiment trackers (`--track`): TensorBoard, Weights & Biases, MLflow and Trackio.

Each logs the configuration once, and every row of metrics.jsonl with the update number as step. They write below the run folder
and use no network, unless their own environment variables say otherwise. A resumed run continues its trackers' runs, whose ids
are in RUN/trackers.json. A tracker that raises is disabled with one warning; training continues.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from offline_cli.engines.ranks import is_first
from offline_cli.errors import BadConfig, MissingPackage
from offline_cli.storage.blanking import blanked
from offline_cli.training.run_folder import RunFolder

__all__ = ["OnRow", "check_trackers", "tracking"]

PROJECT: Final = "offline-cli"  # project name in the trackers
MAX_PARAM: Final = 500  # maximum length of a parameter in every version of MLflow
_log = logging.getLogger(__name__)
Config = Mapping[str, Any]
OnRow = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Tracker:
    """An open tracker. `log` takes a row and its update number, `close` whether the run finished."""

    id: str
    log: Callable[[dict[str, float], int], Any]
    close: Callable[[bool], Any]


def _tensorboard(folder: Path, config: Config, update: int, id_: str, is_new: bool) -> Tracker:
    made = importlib.import_module("torch.utils.tensorboard").SummaryWriter
    writer = made(str(folder / "tensorboard"), purge_step=update)  # hides later steps of a killed or replaced run
    if is_new:
        writer.add_text("config", "\n".join(f"    {name} = {value}" for name, value in config.items()), 0)

    def log(figures: dict[str, float], update: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, update)

    return Tracker("tensorboard", log, lambda ended: writer.close())


def _wandb(folder: Path, config: Config, update: int, id_: str, is_new: bool) -> Tracker:
    tracked = importlib.import_module("wandb").init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        id=id_,
        name=folder.name,
        resume="allow",
        reinit="create_new",  # the calling program may have an open run
        mode=os.environ.get("WANDB_MODE", "offline"),
        dir=os.environ.get("WANDB_DIR", str(folder)),
        config=dict(config) if is_new else None,
        settings={"silent": True, "console": "off"},
    )
    return Tracker(id_, lambda row, step: tracked.log(row, step=step), lambda ended: tracked.finish(exit_code=int(not ended)))


def _mlflow(folder: Path, config: Config, update: int, id_: str, is_new: bool) -> Tracker:
    mlflow, entities = importlib.import_module("mlflow"), importlib.import_module("mlflow.entities")
    own, uri, artifacts = folder / "mlflow", os.environ.get("MLFLOW_TRACKING_URI"), None
    if uri is None:  # SQLite: MLflow 3.13 refuses stores of plain files
        own.mkdir(exist_ok=True)
        uri, artifacts = f"sqlite:///{own / 'mlflow.db'}", (own / "artifacts").as_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)
    if is_new:  # MLflow chooses its id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name, artifacts) if found is None else found.experiment_id
        id_ = client.create_run(experiment, run_name=folder.name).info.run_id
        client.log_batch(id_, params=[entities.Param(key, str(value)[:MAX_PARAM]) for key, value in config.items()])
    else:
        client.update_run(id_, "RUNNING")

    def log(figures: dict[str, float], update: int) -> None:
        now = int(time.time() * 1000)
        client.log_batch(id_, metrics=[entities.Metric(name, value, now, update) for name, value in figures.items()])

    return Tracker(id_, log, lambda ended: client.set_terminated(id_, "FINISHED" if ended else "FAILED"))


def _trackio(folder: Path, config: Config, update: int, id_: str, is_new: bool) -> Tracker:
    os.environ.setdefault("TRACKIO_DIR", str(folder / "trackio"))  # trackio reads it on import
    name = f"{folder.name}-{id_}" if is_new else id_  # trackio identifies runs by name
    config = dict(config) if is_new else {}
    tracked = importlib.import_module("trackio").init(project=PROJECT, name=name, resume="allow", config=config)
    return Tracker(name, lambda row, step: tracked.log(row, step=step), lambda ended: tracked.finish())


KINDS: Final = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}


def check_trackers(names: Sequence[str], folder: RunFolder) -> None:
    """Raise MissingPackage if a tracker is not installed, BadConfig if the run folder is not on a local disk."""
    for name in names:
        if sys.modules.get(name) is None and getattr(find_spec(name), "origin", None) is None:  # a mere folder has no origin
            fix = f"pip install 'offline-cli[{name}]'"
            raise MissingPackage(f"the package {name} is not installed", where=f"--track {name}", fix=fix)
    if names and folder.local_path is None:
        fix = "use a local --out, or leave out --track: metrics.jsonl has the same rows"
        raise BadConfig(f"trackers need a local run folder, and {folder.url} is remote", where="--track", fix=fix)


@contextmanager
def tracking(names: Sequence[str], folder: RunFolder, config: Config, update: int) -> Iterator[OnRow]:
    """Context manager: open the trackers and yield a callback for rows. Only the first process tracks. Raises BadData."""
    opened, failed = dict[str, Tracker](), set[str]()

    def tried(name: str, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except (Exception, SystemExit) as err:  # noqa: BLE001  other packages' exceptions
            if name not in failed:
                _log.warning("warning: %s failed and is disabled for this run: %s", name, blanked(repr(err)))
            failed.add(name)

    def log(row: Mapping[str, Any]) -> None:
        figures = {name: float(value) for name, value in row.items() if name != "update" and isinstance(value, int | float)}
        for name in opened.keys() - failed:
            tried(name, opened[name].log, figures.copy(), row["update"])

    finished = False
    try:
        if names and is_first() and (place := folder.local_path) is not None:
            ids = folder.trackers()
            for name in dict.fromkeys(names):
                id_ = ids.get(name) or uuid.uuid4().hex[:12]
                if tracker := tried(name, KINDS[name], place, config, update, id_, name not in ids):
                    opened[name], ids[name] = tracker, tracker.id
                    folder.keep_trackers(ids)
        yield log
        finished = True
    finally:
        for name, tracker in opened.items():
            tried(name, tracker.close, finished)
