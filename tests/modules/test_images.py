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
from offline_cli.modules.encoders import AUTO, Axes, ImageEncoder, ImageForm, ObservationEncoder
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.train import train_bc

Write = Callable[..., Path]


def pixels(*shape: int, dtype: Any = np.uint8) -> spaces.Box:
    return spaces.Box(0, 255, shape, dtype)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((84, 84), Axes("hw", 1, 84, 84)),
        ((84, 96, 1), Axes("hwc", 1, 84, 96)),
        ((4, 84, 96), Axes("chw", 4, 84, 96)),
        ((84, 96, 42), Axes("hwc", 42, 84, 96)),
        ((84, 96, 43), Axes("hwc", 43, 84, 96, is_clear=False)),
        ((84, 84, 84), Axes("hwc", 84, 84, 84, is_clear=False)),
        ((60, 84, 84), Axes("chw", 60, 84, 84, is_clear=False)),
        ((35, 84), None),
        ((84, 3, 84), None),
        ((84,), None),
        ((2, 84, 84, 3), None),
    ],
    ids=str,
)
def test_axes_are_read_by_the_shape(shape: tuple[int, ...], axes: Axes | None) -> None:
    assert ImageForm(AUTO).axes(pixels(*shape)) == axes


@pytest.mark.parametrize("encoder", ["nature", "impala"])
def test_the_same_picture_has_the_same_features_in_every_layout(encoder: str) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (2, 44, 40, 1), np.uint8)
    found = []
    for layout, shown in (("hwc", picture), ("chw", picture.transpose(0, 3, 1, 2)), ("hw", picture[..., 0])):
        torch.manual_seed(0)
        made = ObservationEncoder(pixels(*shown.shape[1:]), images=ImageForm(layout, encoder))
        assert isinstance(made.parts[0], ImageEncoder)
        found.append(made(torch.as_tensor(shown.copy())))
        assert found[-1].shape == (2, made.size)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_impala_is_the_deep_residual_network_of_its_paper() -> None:
    made = ObservationEncoder(pixels(72, 96, 3), images=ImageForm(AUTO, "impala"))
    convolutions = [part for part in made.modules() if isinstance(part, torch.nn.Conv2d)]
    assert [part.out_channels for part in convolutions] == [16] * 5 + [32] * 10
    assert made.size == 32 * 9 * 12
    blank = torch.zeros((1, 72, 96, 3), dtype=torch.uint8)
    with torch.no_grad():
        for part in convolutions:
            part.weight.zero_()
            assert part.bias is not None
            part.bias.fill_(0.25)
    assert made(blank).unique().tolist() == [0.75], "of the last convolution, and of one in each of the two blocks after it"


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


@pytest.mark.parametrize("more", ["encoder = 'impala'", "encoder = 'impala'\nmemory = 'gru'\nmemory_size = 8\nmax_seq_len = 3"])
def test_an_encoder_by_name_learns_and_is_loaded_again(
    more: str, as_written: Write, config: Callable[[str], Path], tmp_path: Path
) -> None:
    result = train_bc(as_written(drawn((36, 36, 2))), tmp_path / "run", config=config(more), updates=20)
    assert result.loss is not None
    assert result.loss < 0.69
    encoder = load_policy(tmp_path / "run").module.encoder
    assert type(encoder.parts[0].network).__name__ == "Impala"  # type: ignore[union-attr,index]


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
