"""docs/coming-from.md: the commands of each section run, on files of the library that it is for or of its layout."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from warm_commands import Shell

from offline_cli.converting.convert import convert
from offline_cli.recording.record import record

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = (REPOSITORY / "docs" / "coming-from.md").read_text(encoding="utf-8")
SAMPLES, EXPERTS = REPOSITORY / "tests" / "testdata", REPOSITORY / "sample_data" / "experts"
CARTPOLE = REPOSITORY / "sample_data" / "rllib_cartpole_expert"
SECTIONS = {
    part.partition("\n")[0]: re.findall(r"```sh\n(.*?)```", part, re.DOTALL)[0]
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
}
NEEDS = {
    "Minari": "h5py",
    "D4RL": "h5py",
    "LeRobot": "onnxscript",
    "d3rlpy": "h5py",
    "stable-baselines3": "stable_baselines3",
    "RLlib": "numpy",
}


def what_the_reader_has(library: str, folder: Path) -> None:
    """The files that the section begins with."""
    if library == "Minari":
        convert(CARTPOLE, folder / "recorded", env="CartPole-v1")
        convert(folder / "recorded", folder / ".minari/datasets/cartpole/expert-v0", to="minari")
    elif library == "D4RL":
        pytest.importorskip("stable_baselines3")
        record("Pendulum-v1", folder / "recorded", policy=f"sb3:{EXPERTS / 'pendulum.zip'}", episodes=30, num_envs=30)
        convert(folder / "recorded", folder / "pendulum.hdf5", to="d4rl")
    elif library == "LeRobot":
        shutil.copytree(SAMPLES / "lerobot" / "v30", folder / "so100")
    elif library == "d3rlpy":
        convert(CARTPOLE, folder / "recorded", env="CartPole-v1")
        convert(folder / "recorded", folder / "buffer.h5", to="d3rlpy")
    elif library == "stable-baselines3":
        shutil.copy(EXPERTS / "cartpole.zip", folder / "ppo_cartpole.zip")
    else:
        shutil.copytree(CARTPOLE, folder / "rllib_output")


def ran(library: str, script: str, folder: Path, shell: Shell) -> str:
    """What the commands say."""
    pytest.importorskip(NEEDS[library])
    what_the_reader_has(library, folder)
    done = shell(f"export HOME={folder}\n{script}", folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("library", SECTIONS)
def test_the_commands_of_a_section_run_one_after_the_other(library: str, tmp_path: Path, script_shell: Shell) -> None:
    short = re.sub(r"--updates \d+", "--updates 4", SECTIONS[library])
    short = re.sub(r"--episodes \d+", "--episodes 2", short)
    assert "--updates 4" in short
    ran(library, short, tmp_path, script_shell)


@pytest.mark.nightly
@pytest.mark.parametrize(("library", "least"), [("Minari", 400), ("D4RL", -400), ("d3rlpy", 400), ("stable-baselines3", 350)])
def test_the_policy_of_a_section_plays_well(library: str, least: float, tmp_path: Path, script_shell: Shell) -> None:
    said = ran(library, SECTIONS[library], tmp_path, script_shell)
    assert float(re.findall(r"^return mean +(\S+)$", said, re.MULTILINE)[-1].replace(",", "")) >= least
