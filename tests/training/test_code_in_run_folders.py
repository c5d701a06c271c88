"""What a run folder names is data: no module is imported for it, by no command, until the user names that module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from edited_json import tell, told_in

from offline_cli import evaluate, record
from offline_cli.errors import BadConfig
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
ENVS = ("python:evil_module:make", "evil_module:Sign-v0")
MODULE = """
import gymnasium
from pathlib import Path
(Path(__file__).parent / "ran").touch()
def make():
    return gymnasium.make("Sign-v0", disable_env_checker=True)
"""


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there once the code beside the caller has run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_module.py").write_text(MODULE)
    yield tmp_path / "ran"
    sys.modules.pop("evil_module", None)


@pytest.fixture
def run(write_dataset: Write, tmp_path: Path) -> Path:
    """A finished run in `tmp_path`, on the dataset beside it."""
    train_bc(write_dataset(), tmp_path / "run", env="Sign-v0", updates=4, eval_episodes=1)
    return tmp_path / "run"


def configure(run: Path, env: str) -> None:
    """Have config.toml, which people may edit, name another environment."""
    text = (run / "config.toml").read_text()
    assert 'env = "Sign-v0"' in text
    (run / "config.toml").write_text(text.replace('env = "Sign-v0"', f'env = "{env}"'))


@pytest.mark.parametrize("env", ENVS)
def test_resuming_imports_no_code_that_the_run_folder_names(run: Path, canary: Path, env: str) -> None:
    configure(run, env)
    with pytest.raises(BadConfig) as caught:
        train_bc(run.parent / "data", run, resume=True, updates=8)
    assert f"--env {env}" in caught.value.fix
    assert not canary.exists()


@pytest.mark.parametrize("env", ENVS)
def test_what_is_named_again_is_imported_and_goes_on(run: Path, canary: Path, env: str) -> None:
    configure(run, env)
    assert train_bc(run.parent / "data", run, resume=True, env=env, updates=8).updates == 8
    assert canary.exists()


@pytest.mark.parametrize("env", ENVS)
def test_playing_and_recording_import_no_code_that_the_run_folder_names(run: Path, canary: Path, env: str) -> None:
    configure(run, env)
    tell(run / "policy.json", {**told_in(run / "policy.json"), "environment": env})
    with pytest.raises(BadConfig) as caught:
        evaluate(run)
    assert f"--env {env}" in caught.value.fix
    assert evaluate(run, env="Sign-v0", episodes=1).episodes == 1
    record("Sign-v0", run.parent / "recorded", policy=str(run), episodes=1, num_env_runners=0)
    assert load_policy(run).description["environment"] == env
    assert not canary.exists()
