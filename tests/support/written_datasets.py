"""Fixtures: places of both kinds, small batches of every structure, and datasets written from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.trees import flatten, map_leaves

OBSERVATIONS = spaces.Box(-1, 1, (4,), np.float32)
ACTIONS = spaces.Discrete(3)


@pytest.fixture
def paths_of() -> Callable[[Location], list[str]]:
    """A function that lists the files below a place, relative to it; empty where there is nothing."""

    def relative(location: Location) -> list[str]:
        return [file.path.removeprefix(location.path).lstrip("/") for file in location.files()] if location.exists() else []

    return relative


def sample(space: Space, rng: np.random.Generator, rows: int) -> Any:
    """Random leaves (rows, *shape) of `space`."""
    if isinstance(space, spaces.Dict):
        return {key: sample(part, rng, rows) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sample(part, rng, rows) for part in space.spaces)
    dtype, shape = np.dtype(space.dtype), (rows, *(space.shape or ()))
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    high = np.iinfo(dtype).max if isinstance(space, spaces.Box) else 2
    return rng.integers(0, high, shape, dtype, endpoint=isinstance(space, spaces.Box))


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., EpisodeBatch]:
    """A function that makes a batch of random episodes; the same one for the same arguments."""

    def make(
        lengths: Sequence[int] = (3, 1, 5),
        *,
        observation_space: Space = OBSERVATIONS,
        action_space: Space = ACTIONS,
        seed: int = 0,
        first_id: int = 0,
        **fields: Any,
    ) -> EpisodeBatch:
        rng = np.random.default_rng([seed, first_id])
        steps, episodes = sum(lengths), len(lengths)
        terminated = rng.random(episodes) < 0.5
        return EpisodeBatch(
            ids=tuple(f"episode-{first_id + i}" for i in range(episodes)),
            starts=np.cumsum([0, *lengths]).astype(np.int64),
            obs=sample(observation_space, rng, steps + episodes),
            actions=sample(action_space, rng, steps),
            rewards=rng.normal(size=steps),
            terminated=terminated,
            truncated=~terminated,
            observation_space=observation_space,
            action_space=action_space,
            **fields,
        )

    return make


@pytest.fixture(scope="session")
def assert_same_batch() -> Callable[[EpisodeBatch, EpisodeBatch], None]:
    """A function that compares two batches leaf by leaf, to dtypes, NaN and the order of keys."""

    def same_tree(have: Any, want: Any, name: str) -> None:
        assert [path for path, _ in flatten(have, name)] == [path for path, _ in flatten(want, name)]

        def same(left: Any, right: Any) -> None:
            assert (left.dtype, left.shape) == (right.dtype, right.shape)
            np.testing.assert_array_equal(left, right)

        map_leaves(same, have, want)  # raises where a tuple meets a dict

    def same(have: EpisodeBatch, want: EpisodeBatch) -> None:
        assert have.ids == want.ids
        for name in ("starts", "terminated", "truncated", "rewards", "obs", "actions"):
            same_tree(getattr(have, name), getattr(want, name), name)
        assert set(have.extra) == set(want.extra)
        for name in want.extra:
            same_tree(have.extra[name], want.extra[name], name)
        assert (have.infos and list(have.infos)) == (want.infos and list(want.infos))
        zeros = np.zeros(len(want), np.int64)
        np.testing.assert_array_equal(
            zeros if have.t_started is None else have.t_started, zeros if want.t_started is None else want.t_started
        )
        assert have.agent_ids == want.agent_ids
        assert have.module_ids == want.module_ids

    return same


@pytest.fixture
def writer_for() -> Callable[..., DatasetWriter]:
    """A function that makes a DatasetWriter with the spaces of `make_batch`, other arguments as given."""

    def make(location: Location, **options: Any) -> DatasetWriter:
        defaults: dict[str, Any] = {
            "format": "columns",
            "observation_space": OBSERVATIONS,
            "action_space": ACTIONS,
            "action_scale": "env",
            "provenance": {"commands": ["offline-cli convert SRC --out D"]},
        }
        return DatasetWriter(location, **{**defaults, **options})

    return make


@pytest.fixture
def write_dataset(writer_for: Callable[..., DatasetWriter]) -> Callable[..., Any]:
    """A function that writes batches as a committed dataset and gives its manifest."""

    def write(location: Location, *batches: EpisodeBatch, **options: Any) -> Any:
        with writer_for(location, **options) as writer:
            for batch in batches:
                writer.write(batch)
            return writer.commit()

    return write


@pytest.fixture(params=["episodes", "columns"])
def format(request: pytest.FixtureRequest) -> str:
    """Both formats."""
    return str(request.param)
