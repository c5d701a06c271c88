"""Which observations are images, how their axes are read, and what encodes them."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sealed_runs import tell, told_in

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.modules.encoders import ImageEncoder, ObservationEncoder
from offline_cli.modules.images import AUTO, BY_THREE_AXES, Axes, ImageForm, image_notes
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


def test_a_layout_that_is_given_reads_floats_too_and_leaves_nothing_to_assume() -> None:
    for shape, layout in (((84, 84, 84), "chw"), ((60, 84, 84), "hwc"), ((84, 90), "hw")):
        for dtype in (np.uint8, np.float32):
            found = ImageForm(layout).axes(pixels(*shape, dtype=dtype))
            assert found is not None
            assert (found.layout, found.is_clear) == (layout, True)
    assert ImageForm(AUTO).axes(pixels(84, 84, 3, dtype=np.float32)) is None
    assert ImageForm("none").axes(pixels(84, 84, 3)) is None


def test_only_readings_that_were_assumed_are_noted() -> None:
    space = spaces.Dict({"clear": pixels(84, 84, 3), "flat": pixels(84, 84), "cube": pixels(84, 84, 84)})
    assert [note.split(",")[0] for note in image_notes(space, "obs", ImageForm(AUTO))] == ["obs.cube", "obs.flat"]
    assert image_notes(space, "obs", ImageForm("hw")) == []


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


def test_small_images_need_an_encoder_that_takes_them() -> None:
    assert ImageForm(AUTO).axes(pixels(16, 16, 3)) is None
    assert ImageForm(AUTO, "impala").axes(pixels(16, 16, 3)) is not None


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


def parts_of(run: Path) -> list[str]:
    return [type(part).__name__ for part in load_policy(run).module.encoder.parts]  # type: ignore[operator,union-attr]


@pytest.fixture(scope="module")
def as_written(tmp_path_factory: pytest.TempPathFactory) -> Write:
    from offline_cli.datasets.write_dataset import write_dataset

    def written(batch: EpisodeBatch) -> Path:
        out = tmp_path_factory.mktemp("images") / "data"
        write_dataset([batch], out, action_scale="normalized")
        return out

    return written


def test_a_run_on_images_without_channels_stores_that_they_are_images_and_resumes_so(
    as_written: Write, config: Callable[[str], Path], tmp_path: Path
) -> None:
    data, whole, parted = as_written(drawn((36, 40))), tmp_path / "whole", tmp_path / "parted"
    result = train_bc(data, whole, config=config(""), updates=8)
    assert [note for note in result.notes if "taken for images (height, width), 1 channel" in note]
    train_bc(data, parted, config=config(""), updates=4)
    train_bc(data, parted, updates=8, resume=True)
    assert (whole / "policy.safetensors").read_bytes() == (parted / "policy.safetensors").read_bytes()
    assert json.loads((whole / "policy.json").read_text())["mlp"] == {"images": "auto"}
    assert parts_of(whole) == ["ImageEncoder"]


def test_a_run_folder_that_says_nothing_of_images_plays_flattened_ones(
    as_written: Write, config: Callable[[str], Path], tmp_path: Path
) -> None:
    data, run = as_written(drawn((36, 40))), tmp_path / "run"
    train_bc(data, run, config=config("images = 'none'"), updates=4)
    told = told_in(run / "policy.json")
    tell(run / "policy.json", {name: value for name, value in told.items() if name != "mlp"} | {"version": 1})
    (run / "config.toml").write_text((run / "config.toml").read_text().replace('images = "none"', ""))
    assert parts_of(run) == ["_Numbers"]
    train_bc(data, run, updates=8, resume=True)
    assert parts_of(run) == ["_Numbers"]


def test_a_run_on_images_of_three_axes_says_what_it_has_always_said(
    as_written: Write, config: Callable[[str], Path], tmp_path: Path
) -> None:
    train_bc(as_written(drawn((36, 40, 1))), tmp_path / "run", config=config(""), updates=2)
    assert json.loads((tmp_path / "run" / "policy.json").read_text())["version"] == 1
    assert parts_of(tmp_path / "run") == ["ImageEncoder"]


@pytest.mark.parametrize("more", ["encoder = 'impala'", "encoder = 'impala'\nmemory = 'gru'\nmemory_size = 8\nmax_seq_len = 3"])
def test_an_encoder_by_name_learns_and_is_loaded_again(
    more: str, as_written: Write, config: Callable[[str], Path], tmp_path: Path
) -> None:
    result = train_bc(as_written(drawn((36, 36, 2))), tmp_path / "run", config=config(more), updates=20)
    assert result.loss is not None
    assert result.loss < 0.69
    encoder = load_policy(tmp_path / "run").module.encoder
    assert type(encoder.parts[0].network).__name__ == "Impala"  # type: ignore[union-attr,index]


def test_an_unknown_encoder_is_named_with_the_nearest(as_written: Write, config: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"network.encoder: no encoder 'natur'.*did you mean 'nature'"):
        train_bc(as_written(drawn((36, 36))), tmp_path / "run", config=config("encoder = 'natur'"), updates=1)


PACKAGE = """
from torch import nn
from offline_cli.modules.images import ImageNetwork


class Mean(ImageNetwork):
    def __init__(self, channels, height, width):
        super().__init__()
        self.size, self.scale = channels, nn.Linear(channels, channels)

    def forward(self, images):
        return self.scale(images.mean((2, 3)))
"""


def test_an_encoder_of_a_package_is_taken_by_name_and_played_where_its_package_is_named(
    as_written: Write, config: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eyes").mkdir()
    (tmp_path / "eyes" / "my_eyes.py").write_text(PACKAGE)
    told = tmp_path / "eyes" / "my_eyes-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: my-eyes\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[offline_cli.encoders]\nmean_eye = my_eyes:Mean\n")
    monkeypatch.syspath_prepend(str(tmp_path / "eyes"))
    importlib.invalidate_caches()
    run = tmp_path / "run"
    train_bc(as_written(drawn((36, 36))), run, config=config("encoder = 'mean_eye'"), updates=2)
    monkeypatch.delitem(sys.modules, "my_eyes")
    with pytest.raises(BadConfig, match="code of the package my-eyes"):
        load_policy(run)
    assert "my_eyes" not in sys.modules
    assert load_policy(run, plugins=["my-eyes"]).module is not None
    assert json.loads((run / "policy.json").read_text())["encoder_package"] == "my-eyes"


def test_a_network_of_a_package_takes_three_axes_as_it_always_has() -> None:
    assert ObservationEncoder(pixels(84, 84)).images == BY_THREE_AXES
