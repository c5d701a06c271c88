"""Asks libraries in environments of their own: `PYTHON foreign_formats.py QUESTION FOLDER [FOLDER or FILE]`; refuses nothing.

`lerobot-write`, `lerobot-v21-write`, `ogbench-write`, `imitation-write` make samples; `lerobot-read`, `ogbench-read` and
`imitation-read` put what the library's own reader gives into an archive.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (4, 5, 3)
TASKS = ("push the cube", "lift the cube")
FPS = 10


def lerobot_write(folder: str, *, old: bool = False) -> None:
    """Three episodes by two tasks, with a video; `old`: by a version that writes layout v2.1."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    def feature(dtype: str, *shape: int, names: list[str] | None = None) -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "names": names}

    features = {
        "observation.state": feature("float32", 2, names=["x", "y"]),
        "observation.grid": feature("float32", 2, 3),
        "observation.images.side": feature("video", 64, 64, 3, names=["height", "width", "channel"]),
        "action": feature("float32", 2, names=["ax", "ay"]),
        "next.reward": feature("float32", 1),
        "next.done": feature("bool", 1),
        "next.success": feature("bool", 1),
        "count": feature("int64", 1),
    }
    made = LeRobotDataset.create("us/sample", fps=FPS, features=features, root=folder, robot_type="so100")
    rng = np.random.default_rng(0)
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            last = step == length - 1
            frame = {
                "observation.state": rng.normal(size=2).astype(np.float32),
                "observation.grid": rng.normal(size=(2, 3)).astype(np.float32),
                "observation.images.side": np.full((64, 64, 3), 40 * episode + step, np.uint8),
                "action": rng.normal(size=2).astype(np.float32),
                "next.reward": np.array([0.5 * step], np.float32),
                "next.done": np.array([last and episode != 1]),
                "next.success": np.array([last and episode == 0]),
                "count": np.array([10 * episode + step]),
            }
            task = TASKS[episode % 2]
            if old:
                made.add_frame(frame, task=task)
            else:
                made.add_frame({**frame, "task": task})
        made.save_episode()
    if not old:
        made.finalize()


def lerobot_read(folder: str, out: str) -> None:
    """All frames, by name, without pictures."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("us/sample", root=folder, video_backend="pyav")
    frames = [dataset[number] for number in range(len(dataset))]
    names = [name for name in frames[0] if "images" not in name]
    found = {name: np.array([np.asarray(frame[name]) for frame in frames]) for name in names}
    one = LeRobotDataset("us/sample", root=folder, episodes=[1], video_backend="pyav")
    found["of_episode_1"] = np.array([one[number]["index"] for number in range(len(one))])
    found["fps"], found["robot"] = np.array(dataset.fps), np.array(str(dataset.meta.robot_type))
    for name, known in dataset.meta.stats.items():
        found |= {f"stats/{name}/{kind}": np.asarray(value) for kind, value in known.items() if "images" not in name}
    np.savez_compressed(out, **found)


def ogbench_write(folder: str) -> None:
    """Two trajectories of a manipulation task by random actions, as OGBench's scripts keep them, and one to validate on."""
    import gymnasium
    import ogbench.manipspace  # noqa: F401  registers its environments

    env = gymnasium.make("cube-single-v0", terminate_at_goal=False, mode="data_collection", max_episode_steps=5)
    for name, count in (("cube-single-play-v0", 2), ("cube-single-play-v0-val", 1)):
        rows: dict[str, list[Any]] = {"observations": [], "actions": [], "terminals": [], "qpos": [], "qvel": []}
        for episode in range(count):
            ob, info = env.reset(seed=episode)
            env.action_space.seed(episode)
            done = False
            while not done:
                action = env.action_space.sample()
                next_ob, _, terminated, truncated, info = env.step(action)
                done = terminated or truncated
                for key, value in (("observations", ob), ("actions", action), ("terminals", done)):
                    rows[key].append(value)
                rows["qpos"].append(info["prev_qpos"])
                rows["qvel"].append(info["prev_qvel"])
                ob = next_ob
        kinds = {"terminals": np.dtype(bool)}
        arrays = {key: np.array(values, kinds.get(key, np.dtype(np.float32))) for key, values in rows.items()}
        np.savez_compressed(Path(folder) / f"{name}.npz", **arrays)


def ogbench_read(file: str, out: str) -> None:
    """What its own reader gives, in both layouts."""
    from ogbench.utils import load_dataset

    found: dict[str, Any] = {}
    for layout in ("compact", "regular"):
        arrays = load_dataset(file, compact_dataset=layout == "compact", add_info=True)
        found |= {f"{layout}/{name}": values for name, values in arrays.items()}
    np.savez_compressed(out, **found)


def imitation_write(folder: str) -> None:
    """Trajectories of a continuous task, and below `discrete` of another one, with infos."""
    from imitation.data import serialize, types

    rng = np.random.default_rng(0)
    for name in ("continuous", "discrete"):
        made = []
        for length, terminal in zip(LENGTHS, (True, False, True), strict=True):
            acts = rng.integers(0, 3, length) if name == "discrete" else rng.normal(size=(length, 2)).astype(np.float32)
            infos = (
                np.array([{"x": np.float32(step), "pair": (1, 2)} for step in range(length)]) if name == "discrete" else None
            )
            obs, rews = rng.normal(size=(length + 1, 3)).astype(np.float32), rng.normal(size=length)
            made.append(types.TrajectoryWithRew(obs=obs, acts=acts, infos=infos, terminal=terminal, rews=rews))
        serialize.save(Path(folder) / name, made)


def imitation_read(folder: str, out: str) -> None:
    """All trajectories, one after the other."""
    from imitation.data import serialize

    found = serialize.load_with_rewards(folder)
    arrays = {name: np.concatenate([np.asarray(getattr(one, name)) for one in found]) for name in ("obs", "acts", "rews")}
    np.savez_compressed(out, terminal=np.array([one.terminal for one in found]), **arrays)


QUESTIONS = {
    "lerobot-write": lerobot_write,
    "lerobot-v21-write": lambda folder: lerobot_write(folder, old=True),
    "lerobot-read": lerobot_read,
    "ogbench-write": ogbench_write,
    "ogbench-read": ogbench_read,
    "imitation-write": imitation_write,
    "imitation-read": imitation_read,
}

if __name__ == "__main__":
    QUESTIONS[sys.argv[1]](*sys.argv[2:])
