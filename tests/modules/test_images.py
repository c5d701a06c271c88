"""Which observations are images, how their axes are read, and what encodes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from installed_packages import Install

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.modules.encoders import ImageEncoder, ObservationEncoder, image_sizes
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.train import train_bc

Write = Callable[..., Path]


def pixels(*shape: int, dtype: Any = np.uint8) -> spaces.Box:
    return spaces.Box(0, 255, shape, dtype)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((84, 84), (1, 84, 84)),
        ((84, 96, 1), (1, 84, 96)),
        ((84, 96, 42), (42, 84, 96)),
        ((4, 84, 96), (4, 84, 96)),
        ((3, 35, 84), None),
        ((35, 84), None),
        ((84,), None),
        ((2, 84, 84, 3), None),
    ],
    ids=str,
)
def test_an_image_has_height_width_and_channels(shape: tuple[int, ...], sizes: tuple[int, int, int] | None) -> None:
    assert image_sizes(pixels(*shape), "nature") == sizes
    assert image_sizes(pixels(*shape, dtype=np.float32), "nature") is None


def test_a_picture_without_an_axis_of_channels_has_the_same_features() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (2, 44, 40, 1), np.uint8)
    found = []
    for shown in (picture, picture[..., 0]):
        torch.manual_seed(0)
        made = ObservationEncoder(pixels(*shown.shape[1:]))
        assert isinstance(made.parts[0], ImageEncoder)
        found.append(made(torch.as_tensor(shown.copy())))
        assert found[-1].shape == (2, made.size)
    torch.testing.assert_close(found[0], found[1])


def test_channels_may_come_first_as_in_frame_stacks_of_gymnasium() -> None:
    stack = np.random.default_rng(0).integers(0, 256, (2, 4, 44, 40), np.uint8)
    found = []
    for shown in (stack, np.moveaxis(stack, 1, 3)):
        torch.manual_seed(0)
        found.append(ObservationEncoder(pixels(*shown.shape[1:]))(torch.as_tensor(shown.copy())))
    torch.testing.assert_close(found[0], found[1])


# ---- runs ----


def drawn(shape: tuple[int, ...], episodes: int = 6, length: int = 5) -> EpisodeBatch:
    """Images that are bright in their upper or their lower half, which is the action."""
    steps, chance = episodes * length, np.random.default_rng(0)
    actions = chance.integers(0, 2, steps)
    obs = chance.integers(0, 60, (steps + episodes, *shape), np.uint8)
    starts = np.arange(episodes + 1) * length
    space = spaces.Box(0, 255, shape, np.uint8)
    ends = np.ones(episodes, np.bool_)
    batch = EpisodeBatch(
        ids=tuple(f"e{number}" for number in range(episodes)),
        starts=starts,
        obs=obs,
        actions=actions,
        rewards=np.ones(steps),
        terminated=ends,
        truncated=~ends,
        observation_space=space,
        action_space=spaces.Discrete(2),
    )
    for row, action in zip(batch.step_rows().tolist(), actions.tolist(), strict=True):
        obs[row, slice(0, 18) if action else slice(18, None)] += 150
    return batch


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    def written(network: str) -> Path:
        text = f"hidden = [8]\nbatch_size = 10\nthreads = 1\ncheckpoint_every = 4\n[network]\nname = 'mlp'\n{network}\n"
        (tmp_path / "c.toml").write_text(text)
        return tmp_path / "c.toml"

    return written


@pytest.fixture(scope="module")
def as_written(tmp_path_factory: pytest.TempPathFactory) -> Write:
    from offline_cli.datasets.write_dataset import write_dataset

    def written(batch: EpisodeBatch) -> Path:
        out = tmp_path_factory.mktemp("images") / "data"
        write_dataset([batch], out, action_scale="normalized")
        return out

    return written


@pytest.mark.parametrize("more", ["encoder = 'nature'", "memory = 'gru'\nmemory_size = 8\nmax_seq_len = 3"])
def test_an_encoder_learns_and_is_loaded_again(
    more: str, as_written: Write, config: Callable[[str], Path], tmp_path: Path
) -> None:
    result = train_bc(as_written(drawn((36, 36, 2))), tmp_path / "run", config=config(more), updates=60)
    assert result.loss is not None
    assert result.loss < 0.69
    encoder = load_policy(tmp_path / "run").module.encoder
    assert type(encoder.parts[0].network).__name__ == "Nature"  # type: ignore[union-attr,index]


PACKAGE = """
from torch import nn
from offline_cli.modules.encoders import ImageNetwork


class Mean(ImageNetwork):
    def __init__(self, channels, height, width):
        super().__init__()
        self.size, self.scale = channels, nn.Linear(channels, channels)

    def forward(self, images):
        return self.scale(images.mean((2, 3)))
"""


def test_an_encoder_of_a_package_is_taken_by_name_and_played_where_its_package_is_named(
    as_written: Write, config: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Install
) -> None:
    install("my-eyes", {"encoders": {"mean_eye": "my_eyes:Mean"}}, my_eyes=PACKAGE)
    run = tmp_path / "run"
    train_bc(as_written(drawn((36, 36))), run, config=config("encoder = 'mean_eye'"), updates=2)
    monkeypatch.delitem(sys.modules, "my_eyes")
    with pytest.raises(BadConfig, match="my-eyes"):
        load_policy(run)
    assert "my_eyes" not in sys.modules
    assert load_policy(run, plugins=["my-eyes"]).module is not None
    assert json.loads((run / "policy.json").read_text())["encoder_package"] == "my-eyes"
