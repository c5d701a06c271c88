"""HDF5 files of tests: made of a dict of arrays, and read back as one; samples of the layouts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch

FOREIGN = Path(__file__).resolve().parents[1] / "testdata" / "foreign"


def write(path: Path, datasets: Mapping[str, Any], attributes: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """A file of datasets by path; `attributes` of objects by path, of the root under ''."""
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
        for name, values in (attributes or {}).items():
            (file[name] if name else file).attrs.update(values)
    return path


def tree(path: Path) -> dict[str, Any]:
    """All datasets by path, and attributes as `PATH@NAME`, without those of this program."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]
        found.update({f"{name}@{key}": value for key, value in item.attrs.items() if key != "offline_cli"})

    with h5py.File(path) as file:
        visit("", file)
        file.visititems(visit)
    return found


def assert_same(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        one, other = np.asarray(left[name]), np.asarray(right[name])
        assert (one.dtype, one.shape) == (other.dtype, other.shape), name
        assert (one == other).all(), name


def read(*sources: Any, **options: Any) -> tuple[Any, EpisodeBatch]:
    """The stream, for its counts, and all episodes."""
    stream = read_episodes(list(map(str, sources)), **options)
    return stream, EpisodeBatch.concat(list(stream))


def d4rl(rows: int = 100, *, last_is_end: bool = True, seed: int = 0) -> dict[str, Any]:
    """Arrays of D4RL: an episode terminates after 7 of 20 steps, others run to their limit."""
    rng, at = np.random.default_rng(seed), np.arange(rows)
    ends = (at % 20 == 19) | (last_is_end & (at == rows - 1))
    return {
        "observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": at % 60 == 6,
        "timeouts": ends & (at % 60 != 6),
        "infos/qpos": rng.normal(size=(rows, 2)),
        "infos/action_log_probs": rng.normal(size=rows).astype(np.float32),
    }


def robomimic(path: Path, lengths: tuple[int, ...] = (7, 3, 5, 4, 6, 8, 2, 9, 5, 3, 4), *, final: bool = True) -> Path:
    """A file of robomimic with demonstrations demo_0, ..., two splits, and a reward at their end."""
    rng = np.random.default_rng(1)
    datasets: dict[str, Any] = {}
    attributes: dict[str, dict[str, Any]] = {}
    for number, steps in enumerate(lengths):
        demo, at = f"data/demo_{number}", np.arange(steps)
        for key, values in {
            "pos": rng.normal(size=(steps + 1, 3)),
            "image": rng.integers(0, 255, (steps + 1, 4, 4, 3)).astype(np.uint8),
        }.items():
            datasets[f"{demo}/obs/{key}"] = values[:-1]
            if final:
                datasets[f"{demo}/next_obs/{key}"] = values[1:]
        datasets[f"{demo}/actions"] = rng.uniform(-1, 1, (steps, 4))
        datasets[f"{demo}/rewards"] = (at >= steps - 2).astype(np.float64)
        datasets[f"{demo}/dones"] = (at >= steps - 2).astype(np.int64)
        datasets[f"{demo}/states"] = rng.normal(size=(steps, 5))
        attributes[demo] = {"num_samples": steps, "model_file": f"<mujoco model='{number}'/>"}
    names = [f"demo_{number}" for number in range(len(lengths))]
    cut = len(names) * 3 // 4
    datasets |= {"mask/train": np.array(names[:cut], "S"), "mask/valid": np.array(names[cut:], "S")}
    env_args = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}
    attributes["data"] = {"total": sum(lengths), "env_args": json.dumps(env_args, indent=4)}
    return write(path, datasets, attributes)
