"""docs/explanation/rllib.md says of every setting and class of RLlib's offline API what there is here."""

from __future__ import annotations

import inspect
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from named_commands import COMMANDS, command_named

TORCHRUNS = {"--nproc-per-node"}  # options that are of another command
PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "rllib.md"
METHODS = ("offline_data", "env_runners", "evaluation", "learners", "training")
CUSTOMISED = (  # that the documents of RLlib have users derive from or make
    *("InputReader", "ShuffledInput", "OutputWriter", "IOContext", "OfflineData", "OfflinePreLearner", "EpisodeReplayBuffer"),
    *("OfflineSingleAgentEnvRunner", "SingleAgentEpisode", "MultiAgentEpisode", "ConnectorV2", "ConnectorPipelineV2"),
    *("RLModule", "RLModuleSpec", "DefaultModelConfig", "tune.Tuner"),
)


def rows() -> dict[str, str]:
    """By each name or pattern in the first column of the tables of settings and classes, or in the list: what is said of it."""
    section = PAGE.read_text(encoding="utf-8").split("## Every setting of RLlib")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \| (.*) \|$", section, re.MULTILINE)
    cells += [
        (names, said) for said, names in re.findall(r"^(Not here, because .*?): (`.*?)\.$", section, re.MULTILINE | re.DOTALL)
    ]
    return {name: ours for names, ours in cells for name in re.findall(r"`([^`]+)`", names)}


def settings_of_rllib() -> dict[str, list[str]]:
    """The parameters of the methods that configure an algorithm that learns from data, by method."""
    from ray.rllib.algorithms.bc import BCConfig

    def of(method: str) -> list[str]:  # of BCConfig's and of those that it passes the others on to
        methods = [vars(kind)[method] for kind in BCConfig.__mro__ if method in vars(kind)]
        names = [name for one in methods for name in inspect.signature(one).parameters]
        return sorted({*names} - {"self", "kwargs"})

    return {method: of(method) for method in METHODS}


def test_every_setting_is_on_the_page(answers: Any) -> None:
    said = rows()
    settings = answers(settings_of_rllib)
    assert {name: len(names) > 10 for name, names in settings.items()} == dict.fromkeys(METHODS, True)
    missing = {
        method: [name for name in names if not any(fnmatch(name, one) for one in said)] for method, names in settings.items()
    }
    assert missing == {method: [] for method in METHODS}


def test_every_class_that_users_customise_is_on_the_page() -> None:
    said = rows()
    assert [name for name in CUSTOMISED if not said.get(name)] == []


def test_every_option_that_the_page_names_is_one_of_ours() -> None:
    options = {option for name in COMMANDS for one in command_named(name).params for option in one.opts}
    named = set(re.findall(r"--[a-z][a-z-]+", " ".join(rows().values())))
    assert len(named) > 20
    assert named - options == TORCHRUNS
