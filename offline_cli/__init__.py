"""Record, convert and learn from offline reinforcement-learning data; imports nothing heavy until a name is used."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what the names below are, for type checkers and editors
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
    from offline_cli.exporting.export import export as export
    from offline_cli.modules import RLModule as RLModule
    from offline_cli.playing.evaluate import evaluate as evaluate
    from offline_cli.policies.policy_in_use import load_policy as load_policy
    from offline_cli.recording.record import record as record
    from offline_cli.recording.recorder import Recorder as Recorder
    from offline_cli.storage.locations import open_location as open_location
    from offline_cli.training.train import train as train
    from offline_cli.training.train import train_bc as train_bc

__version__ = "0.1.0"


os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # others keep what is freed (formats/memory_limits.py)

_HOMES = {
    "Columns": "offline_cli.columns",
    "ConnectorPipelineV2": "offline_cli.connectors",
    "ConnectorV2": "offline_cli.connectors",
    "DatasetWriter": "offline_cli.datasets.writer",
    "EpisodeBatch": "offline_cli.episodes.batch",
    "MultiAgentEpisode": "offline_cli.episodes.multi_agent_episode",
    "OfflineCliError": "offline_cli.errors",
    "RLModule": "offline_cli.modules",
    "Recorder": "offline_cli.recording.recorder",
    "SingleAgentEpisode": "offline_cli.episodes.single_agent_episode",
    "apply": "offline_cli.applying.apply",
    "convert": "offline_cli.converting.convert",
    "diff": "offline_cli.converting.operations.differences",
    "evaluate": "offline_cli.playing.evaluate",
    "export": "offline_cli.exporting.export",
    "filter": "offline_cli.converting.operations.selecting",
    "inspect": "offline_cli.checking.inspect",
    "load_policy": "offline_cli.policies.policy_in_use",
    "merge": "offline_cli.converting.operations.merging",
    "open_dataset": "offline_cli.datasets.dataset",
    "open_location": "offline_cli.storage.locations",
    "record": "offline_cli.recording.record",
    "repack": "offline_cli.converting.operations.merging",
    "repair": "offline_cli.checking.repair",
    "sample": "offline_cli.converting.operations.selecting",
    "split": "offline_cli.converting.operations.splitting",
    "train": "offline_cli.training.train",
    "train_bc": "offline_cli.training.train",
    "validate": "offline_cli.checking.validate",
    "write_dataset": "offline_cli.datasets.write_dataset",
}


__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Load the module behind a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
