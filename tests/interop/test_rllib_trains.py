"""RLlib's BC trains on `D/data` as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import Space

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("local_ray")]

VECTOR = spaces.Box(-1, 1, (4,), np.float32)
THREE = spaces.Discrete(3)

TRAINABLE: dict[str, tuple[Space, Space]] = {
    "box to discrete": (VECTOR, THREE),
    "image to discrete": (spaces.Box(0, 1, (64, 64, 3), np.float32), THREE),
    "dict to discrete": (spaces.Dict({"a": VECTOR, "b": THREE}), THREE),
    "box to box": (VECTOR, spaces.Box(-1, 1, (2,), np.float32)),
    "box to dict": (VECTOR, spaces.Dict({"x": THREE, "y": spaces.Box(-1, 1, (2,), np.float32)})),
}
TUPLES_IN_COLUMNS: dict[str, tuple[Space, Space]] = {"tuple observation": (spaces.Tuple([VECTOR, THREE]), THREE)}


def train_one_iteration(batch: EpisodeBatch, data: str, *, format: str = "episodes") -> float:
    """The loss after one iteration of RLlib's BC on the shards in `data`, a dataset of `batch` in this format."""
    from ray.rllib.algorithms.bc import BCConfig
    from ray.rllib.connectors.env_to_module import FlattenObservations

    config = (
        BCConfig()
        .environment(observation_space=batch.observation_space, action_space=batch.action_space)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=16)
        .offline_data(
            input_=[data],
            input_read_episodes=format == "episodes",
            input_read_batch_size=6 if format == "episodes" else None,
            dataset_num_iters_per_learner=1,
            map_batches_kwargs={"concurrency": 1, "num_cpus": 1},
            materialize_mapped_data=False,
        )
        .env_runners(num_env_runners=0)
    )
    if not isinstance(batch.observation_space, spaces.Box):  # RLlib has no encoder for these: its own connector flattens them
        config.env_runners(env_to_module_connector=lambda env, spaces, device: FlattenObservations())
        config.training(learner_connector=lambda obs, act: FlattenObservations(obs, act, as_learner_connector=True))
    algorithm = config.build_algo()
    try:
        return float(algorithm.train()["learners"]["default_policy"]["policy_loss"])
    finally:
        algorithm.stop()


CASES: dict[str, tuple[Space, Space, str]] = {
    **{name: (*spaces_of, "episodes") for name, spaces_of in TRAINABLE.items()},
    **{f"{name}, in columns": (*spaces_of, "columns") for name, spaces_of in TUPLES_IN_COLUMNS.items()},
}


@pytest.mark.parametrize(("observation_space", "action_space", "format"), CASES.values(), ids=CASES)
def test_rllib_trains_on_our_data_as_it_is(
    observation_space: Space,
    action_space: Space,
    format: str,
    random_batch: Callable[..., EpisodeBatch],
    write_dataset: Callable[..., str],
    tmp_path: Path,
) -> None:
    batch = random_batch(observation_space, action_space, lengths=[10] * 6)
    data = write_dataset(tmp_path / "D", batch, format=format)
    assert np.isfinite(train_one_iteration(batch, data, format=format))
