"""The samples in this folder, by one Ray itself: `python make.py [FOLDER]` in an environment with that Ray's `ray[rllib]`.

Writes FOLDER/VERSION.tar.xz (README.md says what is in it) and prints what it counted.
"""

from __future__ import annotations

import inspect
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import FlattenObservations, MeanStdFilter, PrevActionsPrevRewards
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner
from ray.tune.registry import register_env

HERE = Path(__file__).resolve().parent
SEEDS = [1843382385 + number for number in range(8)]  # of the first episodes of `record --seed 0`
EPISODES = {"CartPole-v1": 3, "Pendulum-v1": 1}
PIECES: dict[str, Callable[[], list[Any]]] = {
    "": list,
    "filter": lambda: [MeanStdFilter()],
    "previous": lambda: [PrevActionsPrevRewards(n_prev_actions=2), FlattenObservations()],
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {  # environment, pieces, model
    "cartpole": ("CartPole-v1", "", {}),
    "cartpole_filter": ("CartPole-v1", "filter", {}),
    "cartpole_previous": ("CartPole-v1", "previous", {}),
    "cartpole_lstm": ("CartPole-v1", "", {"use_lstm": True, "lstm_cell_size": 4}),
    "pendulum": ("Pendulum-v1", "", {}),
    "pendulum_filter": ("Pendulum-v1", "filter", {}),
}
LIMIT = {"Pendulum-v1": {"max_episode_steps": 50}}
KEPT = (
    "**/*_connector/class_and_ctor_args.pkl",
    "**/*_connector/*/state.*",
    "learner_group/learner/rl_module/**/*",
    "rl_module/**/*",
)
NOTHING = 6  # bytes of a pickled empty dict


class Logged(gym.Wrapper):  # type: ignore[type-arg]
    """Resets with the next of the seeds, while there are any, and keeps what it gives and takes: filters write over it."""

    seeds: Iterator[int] = iter(())
    episodes: list[dict[str, list[Any]]] = []  # noqa: RUF012  of all environments, of which one plays at a time

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=next(Logged.seeds, seed), options=options)
        Logged.episodes.append({"observations": [found[0].copy()], "actions": [], "rewards": []})
        return found

    def step(self, action: Any) -> Any:
        found = super().step(action)
        values = np.array(action), float(found[1]), found[0].copy()
        for name, value in zip(("actions", "rewards", "observations"), values, strict=True):
            Logged.episodes[-1][name].append(value)
        return found


def config_of(env: str, pieces: str, model: dict[str, Any], seed: int = 1) -> PPOConfig:
    register_env("logged", lambda _: Logged(gym.make(env, **LIMIT.get(env, {}))))
    config = (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        .environment("logged")
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .training(train_batch_size=512, minibatch_size=64, num_epochs=8, lr=0.02)
        .debugging(seed=seed)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[8, 8], **model))
    )
    if pieces:
        config = config.env_runners(env_to_module_connector=lambda env, spaces=None, device=None: PIECES[pieces]())
    return config


def save(name: str, out: Path) -> dict[str, Any]:
    """The checkpoints of a case, of the first seed whose policy has more than one action, and what Ray plays with them."""
    env, pieces, model = CASES[name]
    for seed in range(1, 50):
        config = config_of(env, pieces, model, seed)
        algorithm = config.build_algo() if hasattr(config, "build_algo") else config.build()
        algorithm.train()
        with tempfile.TemporaryDirectory() as folder:
            algorithm.save_to_path(folder)
            played = play(algorithm, env)  # which changes what pieces remember
            if len(np.unique(np.concatenate([one["actions"] for one in played]))) > 1:
                keep(Path(folder), out / name / "algorithm")
                break
        algorithm.stop()
    if not pieces:
        algorithm.get_module().save_to_path(str(out / name / "module"))
        save_arrays(algorithm.get_module(), out / name / "arrays", env)
    if name == "cartpole_filter":
        save_packed(algorithm, out / name / "packed")
    algorithm.stop()
    lengths = [len(one["rewards"]) for one in played]
    arrays = {part: np.concatenate([np.stack(one[part]) for one in played]) for part in ("observations", "actions", "rewards")}
    np.savez_compressed(out / name / "played.npz", lengths=lengths, **arrays)
    return {"lengths": lengths, "returns": [float(np.sum(one["rewards"])) for one in played]}


def save_packed(algorithm: Any, out: Path) -> None:
    """The runner's part with states as msgpack, which 2.40 cannot write, and no Ray until 2.49 for a whole algorithm."""
    with tempfile.TemporaryDirectory() as folder:
        if "use_msgpack" in inspect.signature(algorithm.env_runner.save_to_path).parameters:
            algorithm.env_runner.save_to_path(folder, use_msgpack=True)
            keep(Path(folder), out)


def play(algorithm: Any, env: str) -> list[dict[str, list[Any]]]:
    """Greedy episodes from the seeds, by Ray's own runner and pipelines; its filters count nothing meanwhile."""
    runner = algorithm.env_runner
    for piece in runner._env_to_module.connectors:
        if isinstance(piece, MeanStdFilter):
            piece._update_stats = False
    Logged.seeds, Logged.episodes = iter(SEEDS), []
    runner.sample(num_episodes=EPISODES[env], explore=False)
    Logged.seeds = iter(())
    return Logged.episodes[: EPISODES[env]]


def keep(folder: Path, out: Path) -> None:
    """Of a checkpoint the module, the pipelines and what pieces learned: the rest is the learner's."""
    for file in {file for pattern in KEPT for file in folder.glob(pattern) if file.is_file() and file.stat().st_size > NOTHING}:
        target = out / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())


def save_arrays(module: Any, folder: Path, env: str) -> None:
    """The module's state as a state dict of arrays, with the description that is read without a pickle."""
    folder.mkdir()
    model = module.model_config
    given = dict(model) if isinstance(model, dict) else vars(model)
    names = ("fcnet_hiddens", "fcnet_activation", "use_lstm", "lstm_cell_size", "max_seq_len", "head_fcnet_activation")
    spaces = {"observation_space": module.observation_space, "action_space": module.action_space}
    told: dict[str, Any] = {name: described(space) for name, space in spaces.items()}
    told["model_config"] = {one: given[one] for one in names if one in given}
    (folder / "module.json").write_text(json.dumps(told, indent=1) + "\n")
    state = {name: np.asarray(array) for name, array in module.get_state().items()}
    (folder / "module_state.msgpack").write_bytes(msgpack.packb(state, default=msgpack_numpy.encode))


def described(space: Any) -> dict[str, Any]:
    if isinstance(space, gym.spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    bounds = {
        name: [str(value) if np.isinf(value) else float(value) for value in getattr(space, name)] for name in ("low", "high")
    }
    return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **bounds}


def record(kind: str, env: str, out: Path) -> dict[str, Any]:
    """A recording by RLlib's own recorder, and what it says it recorded."""
    config = config_of(env, "", {})
    with tempfile.TemporaryDirectory() as folder:
        config = config.offline_data(
            output=folder,
            output_write_episodes=kind == "episodes",
            **({} if kind == "packed_columns" else {"output_compress_columns": []}),
        )
        mode = "truncate_episodes" if kind == "fragments" else "complete_episodes"
        config = config.env_runners(rollout_fragment_length=15, batch_mode=mode)
        config.validate()
        runner = OfflineSingleAgentEnvRunner(config=config, worker_index=0)
        calls = [{"num_timesteps": 15}] * 4 if kind == "fragments" else [{"num_episodes": EPISODES[env]}]
        samples = [episode for call in calls for episode in runner.sample(explore=True, **call)]
        runner.stop()
        files = sorted(Path(folder).rglob("*.parquet"), key=lambda file: (file.parent.name, file.name))
        out.mkdir(parents=True)
        for number, file in enumerate(joined(files)):
            pq.write_table(file, out / f"{number:06d}.parquet")
    return {
        "episodes": len({episode.id_ for episode in samples}),
        "rows": len(samples),
        "steps": sum(map(len, samples)),
        "return": float(sum(sum(episode.get_rewards()) for episode in samples)),
        "its_reader": counted_by_its_reader(kind, out, config),
    }


def joined(files: list[Path]) -> list[pa.Table]:
    """Ray writes a file for each row or block: those of one call of `sample` are joined, as they are."""
    calls: dict[str, list[pa.Table]] = {}
    for file in files:
        calls.setdefault(file.parent.name, []).append(pq.ParquetFile(file).read())
    return [pa.concat_tables(tables, promote_options="permissive") for tables in calls.values()]


def counted_by_its_reader(kind: str, folder: Path, config: PPOConfig) -> dict[str, int]:
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    data = ray.data.read_parquet(str(folder))
    if kind == "episodes":
        states = [msgpack.unpackb(row["item"], object_hook=msgpack_numpy.decode) for row in data.take_all()]
        found = [SingleAgentEpisode.from_state(state) for state in states]
    else:
        from ray.rllib.offline.offline_prelearner import OfflinePreLearner

        batch = data.take_batch(10_000, batch_format="numpy")
        if "is_multi_agent" in inspect.signature(OfflinePreLearner._map_to_episodes).parameters:  # a static method until 2.54
            found = OfflinePreLearner._map_to_episodes(False, batch, input_compress_columns=["obs", "new_obs"])["episodes"]
        else:
            reader = OfflinePreLearner.__new__(OfflinePreLearner)
            reader.config = config
            found = reader._map_to_episodes(batch)["episodes"]
    return {"rows": data.count(), "steps": sum(map(len, found))}


def pack(folder: Path, archive: Path) -> None:
    """Names and contents of the files, and no dates or owners."""
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                content, told = file.read_bytes(), tarfile.TarInfo(str(file.relative_to(folder)))
                told.size = len(content)
                packed.addfile(told, io.BytesIO(content))


def main(folder: Path) -> None:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as made:
        out = Path(made)
        counts: dict[str, Any] = {"played": {name: save(name, out) for name in CASES}}
        wanted = [("episodes", "CartPole-v1"), ("fragments", "CartPole-v1"), ("columns", "CartPole-v1")]
        wanted += [("packed_columns", "CartPole-v1"), ("columns", "Pendulum-v1")]
        recorded = counts["recorded"] = {}
        for kind, env in wanted:
            name = kind if env == "CartPole-v1" else "pendulum_" + kind
            recorded[name] = record(kind, env, out / name)
        (out / "counts.json").write_text(json.dumps(counts, indent=1) + "\n")
        pack(out, folder / f"{ray.__version__}.tar.xz")
    print(json.dumps(counts))
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
