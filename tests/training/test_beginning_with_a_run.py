"""`train --init-from`: what a run begins with, what has to be the same, and what is kept of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from signal_at import signal_at

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, Interrupted, NoData, StorageNotFound, UsageError
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.train import train

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
OPTIONS: dict[str, Any] = {"updates": 20, "batch_size": 32, "hidden": (8,), "device": "cpu"}
ONE: dict[str, Any] = {**OPTIONS, "updates": 1, "lr": 1e-12}


@pytest.fixture
def often(tmp_path: Path) -> Path:
    """A configuration whose runs can be stopped at any update."""
    (tmp_path / "often.toml").write_text("log_every = 1\n")
    return tmp_path / "often.toml"


MANNERS = pytest.mark.parametrize("streaming", [False, True])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "policy.safetensors")


def modules(run: Path) -> dict[str, torch.Tensor]:
    return {name: one for name, one in load_file(run / "state.safetensors").items() if name.startswith("modules.")}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


def test_a_run_begins_with_the_policy_of_another_and_names_its_weights(write_dataset: Write, tmp_path: Path) -> None:
    data, first, second = write_dataset(), tmp_path / "first", tmp_path / "second"
    train(data, first, **OPTIONS)
    result = train(data, second, init_from=first, **ONE)
    assert same(weights(first), weights(second))
    digest = hashlib.sha256((first / "policy.safetensors").read_bytes()).hexdigest()
    assert result.init_from == {"run": str(first), "sha256": digest, "modules": ["policy"], "fresh": []}
    assert json.loads((second / "result.json").read_text())["init_from"] == result.init_from


def test_of_a_run_by_the_same_algorithm_all_modules_are_taken(write_dataset: Write, tmp_path: Path) -> None:
    data, first, second = write_dataset(), tmp_path / "first", tmp_path / "second"
    train(data, first, algorithm="iql", **OPTIONS)
    result = train(data, second, algorithm="iql", set={"tau": 0.0}, init_from=first, **ONE)
    assert set(result.init_from["modules"]) == {"policy", "value", "critics", "target_critics"}
    assert same(modules(first), modules(second))


def test_all_differences_are_named_at_once(write_dataset: Write, make_batch: Make, tmp_path: Path) -> None:
    train(write_dataset(), tmp_path / "first", **OPTIONS)
    other = write_dataset(make_batch(continuous=True), name="other", action_scale="normalized")
    with pytest.raises(BadConfig) as caught:
        train(other, tmp_path / "run", init_from=tmp_path / "first", **{**OPTIONS, "hidden": (16,)})
    assert (caught.value.exit_code, [text.partition(":")[0] for text in caught.value.details["problems"]]) == (
        4,
        ["actions", "action scale", "form of Box actions", "network hidden"],
    )
    assert not (tmp_path / "run").exists()


@MANNERS
def test_what_pieces_had_learned_is_taken_over_and_resumed(
    write_dataset: Write, make_batch: Make, tmp_path: Path, streaming: bool, often: Path
) -> None:
    pieces = tmp_path / "pieces.toml"
    pieces.write_text('kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n')
    how: dict[str, Any] = {"pipeline": pieces, "config": often, **OPTIONS, "streaming": streaming}
    data, other = write_dataset(), write_dataset(make_batch(seed=5), name="other")
    train(data, tmp_path / "first", **how)
    train(other, tmp_path / "whole", init_from=tmp_path / "first", **how)
    with pytest.raises(Interrupted):
        train(other, tmp_path / "parts", init_from=tmp_path / "first", on_progress=signal_at(9), **how)
    train(other, tmp_path / "parts", resume=True, pipeline=pieces)
    for file in ("policy.safetensors", "connectors.msgpack"):
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    before, after = (RunFolder(tmp_path / name).learned()["MeanStdFilter"] for name in ("first", "whole"))
    assert str(before) == str(after)
    with pytest.raises(BadConfig, match="mean_std_filter"):
        train(other, tmp_path / "none", init_from=tmp_path / "first", **OPTIONS)


def test_what_is_no_run_and_the_run_itself_are_refused(write_dataset: Write, tmp_path: Path) -> None:
    data = write_dataset()
    with pytest.raises(StorageNotFound):
        train(data, tmp_path / "run", init_from=tmp_path / "nowhere", **OPTIONS)
    with pytest.raises(NoData):
        train(data, tmp_path / "run", init_from=data, **OPTIONS)
    train(data, tmp_path / "run", **OPTIONS)
    with pytest.raises(UsageError):
        train(data, tmp_path / "run", init_from=tmp_path / "run", overwrite=True, **OPTIONS)
    assert (tmp_path / "run" / "result.json").exists()
