"""Record, convert and learn from offline reinforcement-learning data; public names are imported lazily."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the lazy names, for type checkers and editors
    from offline_cli.applying.apply import apply as apply
    from offline_cli.checking.inspect import inspect as inspect
    from offline_cli.checking.repair import repair as repair
    from offline_cli.checking.validate import validate as validate
    from offline_cli.columns import Columns as Columns
    from offline_cli.connectors import ConnectorPipelineV2 as ConnectorPipelineV2
    from offline_cli.connectors import ConnectorV2 as ConnectorV2
    from offline_cli.converting.convert import convert as convert
    from offline_cli.converting.operations.differences import diff as diff
    from offline_cli.converting.operations.merging import merge as merge
    from offline_cli.converting.operations.merging import repack as repack
    from offline_cli.converting.operations.selecting import filter as filter
    from offline_cli.converting.operations.selecting import sample as sample
    from offline_cli.converting.operations.splitting import split as split
    from offline_cli.datasets.dataset import open_dataset as open_dataset
    from offline_cli.datasets.write_dataset import write_dataset as write_dataset
    from offline_cli.datasets.writer import DatasetWriter as DatasetWriter
    from offline_cli.episodes.batch import EpisodeBatch as EpisodeBatch
    from offline_cli.episodes.multi_agent_episode import MultiAgentEpisode as MultiAgentEpisode
    from offline_cli.episodes.single_agent_episode import SingleAgentEpisode as SingleAgentEpisode
    from offline_cli.errors import OfflineCliError as OfflineCliError
    from offline_cli.estimating.compare import compare as compare
    from offline_cli.estimating.evaluate_offline import evaluate_offline as evaluate_offline
    from offline_cli.exporting.export import export as export
    from offline_cli.modules import RLModule as RLModule
    from offline_cli.playing.evaluate import evaluate as evaluate
    from offline_cli.policies.policy_in_use import load_policy as load_policy
    from offline_cli.publishing.publish import publish as publish
    from offline_cli.recording.record import record as record
    from offline_cli.recording.recorder import Recorder as Recorder
    from offline_cli.reporting.report import report as report
    from offline_cli.reporting.runs import curves as curves
    from offline_cli.storage.locations import open_location as open_location
    from offline_cli.training.train import train as train
    from offline_cli.training.train import train_bc as train_bc

__version__ = "0.1.0"


os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # other pools keep freed memory (formats/memory_limits.py)

_NAMES = {
    "applying.apply": ("apply",),
    "checking.inspect": ("inspect",),
    "checking.repair": ("repair",),
    "checking.validate": ("validate",),
    "columns": ("Columns",),
    "connectors": ("ConnectorPipelineV2", "ConnectorV2"),
    "converting.convert": ("convert",),
    "converting.operations.differences": ("diff",),
    "converting.operations.merging": ("merge", "repack"),
    "converting.operations.selecting": ("filter", "sample"),
    "converting.operations.splitting": ("split",),
    "datasets.dataset": ("open_dataset",),
    "datasets.write_dataset": ("write_dataset",),
    "datasets.writer": ("DatasetWriter",),
    "episodes.batch": ("EpisodeBatch",),
    "episodes.multi_agent_episode": ("MultiAgentEpisode",),
    "episodes.single_agent_episode": ("SingleAgentEpisode",),
    "errors": ("OfflineCliError",),
    "estimating.compare": ("compare",),
    "estimating.evaluate_offline": ("evaluate_offline",),
    "exporting.export": ("export",),
    "modules": ("RLModule",),
    "playing.evaluate": ("evaluate",),
    "policies.policy_in_use": ("load_policy",),
    "publishing.publish": ("publish",),
    "recording.record": ("record",),
    "recording.recorder": ("Recorder",),
    "reporting.report": ("report",),
    "reporting.runs": ("curves",),
    "storage.locations": ("open_location",),
    "training.train": ("train", "train_bc"),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
