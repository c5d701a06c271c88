"""Bits that flip in a run folder: whatever is read to play or resume is what was written, or an error names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flipped_bits import flips
from hypothesis import given
from hypothesis import strategies as st
from sealed_runs import tell, told_in

from offline_cli.errors import BadData
from offline_cli.policies.run_files import check_seal, json_bytes, json_object, sealed, tensor_bytes, tensors_of
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
OLD_RUN = Path(__file__).parents[1] / "testdata" / "run_by_255"
PIECES = """
kind = "learner"
[[pieces]]
name = "mean_std_filter"
"""
PLAYED = ("policy.json", "policy.safetensors", "connectors.msgpack")
RESUMED = ("policy.json", "connectors.msgpack", "result.json", "state.json", "tensors.safetensors")


@pytest.fixture
def run(write_dataset: Write, tmp_path: Path) -> Path:
    """A finished run, trained through a piece that learned something."""
    (tmp_path / "pipeline.toml").write_text(PIECES)
    (tmp_path / "small.toml").write_text("hidden = [8]\n")
    made = tmp_path / "run"
    train_bc(write_dataset(), made, config=tmp_path / "small.toml", pipeline=tmp_path / "pipeline.toml", updates=6)
    return made


def read_to_resume(run: Path) -> None:
    """All that `--resume` reads of a run that goes on, and of one that is finished."""
    folder = RunFolder(run)
    folder.load_checkpoint(), folder.policy(), folder.learned(), folder.result()


def told_of(read: Callable[[Path], Any], run: Path, file: Path) -> bool:
    """Whether reading the run says that this file is damaged."""
    try:
        read(run)
    except BadData as err:
        return err.exit_code == 3 and file.name in err.what and str(run) in err.where
    return False


@pytest.mark.parametrize("count", [pytest.param(60, id="some"), pytest.param(1000, id="all", marks=pytest.mark.nightly)])
def test_no_flipped_bit_is_played_or_resumed_from(run: Path, count: int) -> None:
    checkpoint = next((run / "checkpoints").iterdir())
    played = [run / name for name in PLAYED]
    resumed = [run / name if (run / name).exists() else checkpoint / name for name in RESUMED]
    silent = [file for file in flips(played, count // 2) if not told_of(load_policy, run, file)]
    silent += [file for file in flips(resumed, count - count // 2) if not told_of(read_to_resume, run, file)]
    assert not silent
    load_policy(run)
    read_to_resume(run)


def test_no_flipped_bit_of_an_unfinished_runs_weights_is_played(run: Path) -> None:
    (run / "result.json").unlink()
    tensors = next((run / "checkpoints").iterdir()) / "tensors.safetensors"
    assert all(told_of(load_policy, run, file) for file in flips([tensors], 30))


def test_resuming_a_damaged_run_ends_before_anything_is_trained_or_written(run: Path) -> None:
    tensors = next((run / "checkpoints").iterdir()) / "tensors.safetensors"
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file != tensors}
    for _ in flips([tensors], 1):
        with pytest.raises(BadData, match=r"tensors\.safetensors cannot be read: it is damaged"):
            train_bc(run.parent / "data", run, resume=True, pipeline=run.parent / "pipeline.toml", updates=12)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file != tensors} == before


def test_tensors_of_another_checkpoint_are_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "longer")
    train_bc(tmp_path / "data", tmp_path / "longer", resume=True, pipeline=tmp_path / "pipeline.toml", updates=12)
    (theirs,) = (tmp_path / "longer").glob("checkpoints/*/tensors.safetensors")
    (ours,) = run.glob("checkpoints/*/tensors.safetensors")
    shutil.copy(theirs, ours)
    with pytest.raises(BadData, match=r"tensors\.safetensors cannot be read: it is not the one"):
        RunFolder(run).load_checkpoint()


def test_the_configuration_may_be_edited(run: Path) -> None:
    (run / "config.toml").write_text("# mine\n" + (run / "config.toml").read_text().replace("updates = 6", "updates = 9"))
    assert train_bc(run.parent / "data", run, resume=True, pipeline=run.parent / "pipeline.toml").updates == 9


def test_a_run_without_hashes_is_played_and_resumed_with_one_note(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in [run / "result.json", *run.glob("checkpoints/*/state.json"), run / "policy.json"]:
        told = json.loads(file.read_text())
        for name in ("sha256", "tensors_sha256", "given_observation_space"):  # nor does such a run know the last
            told.pop(name, None)
        file.write_text(json.dumps(told))
    load_policy(run)
    train_bc(tmp_path / "data", run, resume=True, pipeline=tmp_path / "pipeline.toml", updates=12)
    assert [record.message.count("carry no hash") for record in caplog.records if "hash" in record.message] == [1, 1]


def test_a_run_of_an_earlier_version_is_played_with_one_note(caplog: pytest.LogCaptureFixture) -> None:
    load_policy(OLD_RUN)
    assert [record.message.count("carry no hash") for record in caplog.records] == [1]


@given(
    content=st.dictionaries(st.text(max_size=5).filter("sha256".__ne__), st.none() | st.integers() | st.text(), max_size=4),
    at=st.integers(min_value=0),
)
def test_json_comes_back_whole_and_any_other_bit_is_an_error(content: dict[str, Any], at: int) -> None:
    whole = json_bytes(content)
    assert json_object(whole, content) == (content, True)
    spoilt = bytearray(whole)
    spoilt[at // 8 % len(whole)] ^= 1 << at % 8
    with pytest.raises(ValueError):  # noqa: PT011  whatever is wrong with it
        json_object(bytes(spoilt), content)


def test_every_bit_of_a_file_of_tensors_counts() -> None:
    import torch
    from safetensors import SafetensorError

    whole = tensor_bytes({"weights": torch.arange(6.0), "bias": torch.zeros(2, dtype=torch.float64)})
    assert tensors_of(whole)[1]
    for at in range(8 * len(whole)):
        spoilt = bytearray(whole)
        spoilt[at // 8] ^= 1 << at % 8
        with pytest.raises((ValueError, SafetensorError)):
            tensors_of(bytes(spoilt))


def test_a_seal_is_of_the_whole_file() -> None:
    whole = sealed(b'{"sha256": "' + b"0" * 64 + b'", "x": 1}')
    digest = json.loads(whole)["sha256"]
    check_seal(whole, digest)
    for other in (whole[:-1], whole + b" ", whole.replace(b"1}", b"2}")):
        with pytest.raises(ValueError, match="damaged"):
            check_seal(other, digest)


@pytest.mark.parametrize("wrong", [{"update": "7"}, {"metrics_bytes": -1}, {"loss": "0.1"}, {"figures": []}, {"threads": True}])
def test_a_state_of_other_kinds_is_bad_data_though_its_seal_fits(run: Path, wrong: dict[str, Any]) -> None:
    (state,) = run.glob("checkpoints/*/state.json")
    tell(state, {**told_in(state), **wrong})
    with pytest.raises(BadData, match=next(iter(wrong))):
        RunFolder(run).load_checkpoint()
