"""What a reader of a page in docs/howto has before its first command."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

from corridor_walks import walks
from installed_packages import register

from offline_cli import train, train_bc, write_dataset
from offline_cli.converting.convert import convert
from offline_cli.recording.record import record

REPOSITORY = Path(__file__).resolve().parents[2]
EXPERTS = REPOSITORY / "sample_data" / "experts"
EXPERT = REPOSITORY / "sample_data" / "rllib_cartpole_expert"


def files_of_other_programs(folder: Path) -> None:
    """One of each library, of its layout or written by it."""
    convert(EXPERT, folder / "recorded", env="CartPole-v1")
    convert(folder / "recorded", folder / ".minari/datasets/cartpole/expert-v0", to="minari")
    convert(folder / "recorded", folder / "buffer.h5", to="d3rlpy")
    record("Pendulum-v1", folder / "played", policy=f"sb3:{EXPERTS / 'pendulum.zip'}", episodes=30, num_envs=30)
    convert(folder / "played", folder / "pendulum.hdf5", to="d4rl")
    shutil.copytree(REPOSITORY / "tests" / "testdata" / "lerobot" / "v30", folder / "so100")
    shutil.copytree(EXPERT, folder / "rllib_output")
    shutil.rmtree(folder / "recorded")
    shutil.rmtree(folder / "played")


def entry_points() -> dict[str, dict[str, str]]:
    """What the package of the page on extending registers, by group and name."""
    page = (REPOSITORY / "docs" / "howto" / "extend.md").read_text(encoding="utf-8")
    registered = tomllib.loads(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])["project"]["entry-points"]
    return {group.removeprefix("offline_cli."): entries for group, entries in registered.items()}


def package_installed(folder: Path) -> None:
    """That package, as `pip install -e` leaves it: its modules are those that the page writes."""
    register(folder / "site", "my-lab", entry_points())
    (folder / "my_lab").mkdir()
    (folder / "site" / "my_lab").symlink_to(folder / "my_lab")


def walks_and_their_clone(folder: Path) -> None:
    write_dataset(walks(400, right=0.7), folder / "dataset")
    train_bc(folder / "dataset", folder / "run", val_fraction=0.5, hidden=[16], updates=200)


def runs_of_two_experts(folder: Path) -> None:
    for number, name in enumerate(("expert_a", "expert_b", "dataset")):
        write_dataset(walks(30, number), folder / name)
    for name in ("bc", "iql"):
        for seed in range(2):
            options = {"seed": seed, "hidden": [8], "updates": 20, "eval_every": 10}
            train(folder / "dataset", folder / name / f"seed-{seed}", algorithm=name, val_fraction=0.5, **options)


FILES: dict[str, Callable[[Path], None]] = {
    "extend": package_installed,
    "formats": files_of_other_programs,
    "offline-evaluation": walks_and_their_clone,
    "report": runs_of_two_experts,
}
