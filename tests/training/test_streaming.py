"""train-bc --streaming: the steps of a run in memory, resumed bit for bit, nothing left behind; what cannot is refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from signal_at import signal_at
from stored_steps import columns_in
from torch import nn

from offline_cli.applying import learner_batches
from offline_cli.columns import Columns
from offline_cli.connectors import FrameStacking, MeanStdFilter
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, Interrupted, NoData, StorageError, StorageNotFound
from offline_cli.files.local_files import TempFile
from offline_cli.modules.encoders import BY_BOUNDS
from offline_cli.modules.network import Network
from offline_cli.modules.policy_modules import build_module
from offline_cli.progress import Progress
from offline_cli.training import memory_store
from offline_cli.training.algorithms import Task
from offline_cli.training.checks import score
from offline_cli.training.config import resolve_config
from offline_cli.training.disk_store import StoreForm
from offline_cli.training.learner import Learner, cloning_learner
from offline_cli.training.loader import StepLoader
from offline_cli.training.memory_store import MemoryStore
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import TrainingData, load_data
from offline_cli.training.training_source import TrainingSource
from offline_cli.trees import leaves

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
CONFIG = "hidden = [16]\nbatch_size = 32\nlr = 0.01\nlog_every = 7\ncheckpoint_every = 10\n"
OPTIONS: dict[str, Any] = {"updates": 95, "val_fraction": 0.25, "eval_every": 15, "seed": 4, "streaming": True}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A small network, many checkpoints, and row and check intervals that do not divide each other."""
    (tmp_path / "c.toml").write_text(CONFIG)
    return tmp_path / "c.toml"


@pytest.fixture(autouse=True)
def small_windows_and_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores of a few hundred steps have several windows and pools, too, and go through pipelines in several parts."""
    monkeypatch.setattr(StoreForm, "within", lambda *args: StoreForm(window=60, pool=50, unit=5))
    monkeypatch.setattr(learner_batches, "PART_BYTES", 2000)


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that counts is a command's, not that of a test runner with thousands of tests behind it."""
    monkeypatch.setattr(memory_store, "_resident", lambda: 300 << 20)


class Loose(Network):
    """Dropout, and a batch norm, whose buffers change in training mode, and which takes no single row there."""

    def features(self, observation_space: spaces.Space[Any], *, uint8_scaling: str = BY_BOUNDS) -> Any:
        layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        layers.size = 8  # type: ignore[assignment]  # any attribute
        return layers


@pytest.fixture
def loose() -> Learner:
    """Behaviour cloning of such a network, in training mode."""
    task = Task(spaces.Box(-9.0, 9.0, (3,)), spaces.Discrete(2), "env", Loose({}))
    learner = cloning_learner(task.policy())
    learner.to(torch.device("cpu"))
    return learner


@contextmanager
def loaded(data: Path, pipeline: Any = None, **options: Any) -> Iterator[TrainingData]:
    made = load_data(data, resolve_config(options), pipeline=pipeline, on_progress=lambda progress: None)
    try:
        yield made
    finally:
        made.close()


def rows(steps: Any) -> list[tuple[float, ...]]:
    """Every step as numbers, in the order that it is held in."""
    columns = columns_in(steps)
    flat = [leaf.reshape(len(leaf), -1).double() for name in ("obs", "actions") for leaf in leaves(columns[name])]
    return [tuple(row) for row in torch.cat(flat, 1).tolist()]


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("step-reader")]


# ---- the same steps ----


def test_streaming_learns_from_the_steps_of_a_run_in_memory_and_holds_out_the_same(write_dataset: Write) -> None:
    data = write_dataset()
    with loaded(data, val_fraction=0.25) as whole, loaded(data, val_fraction=0.25, streaming=True) as streamed:
        assert rows(streamed.train) != rows(whole.train)
        assert sorted(rows(streamed.train)) == sorted(rows(whole.train))
        assert rows(streamed.val) == rows(whole.val)
        assert (streamed.episodes, streamed.steps) == (whole.episodes, whole.steps)


def test_steps_of_all_shapes_are_streamed(write_dataset: Write, random_batch: Make, tmp_path: Path, config: Path) -> None:
    from gymnasium import spaces

    seen = spaces.Dict(
        {"camera": spaces.Box(0, 255, (4, 4, 3), np.uint8), "way": spaces.Tuple((spaces.Discrete(3, start=-1),))}
    )
    data = write_dataset(random_batch(seen, spaces.MultiDiscrete([2, 3]), lengths=(7, 1, 30)))
    with loaded(data) as whole, loaded(data, streaming=True) as streamed:
        assert sorted(rows(streamed.train)) == sorted(rows(whole.train))
    assert train_bc(data, tmp_path / "run", config=config, epochs=2, streaming=True).epochs == 2


def test_a_filter_learns_what_it_learns_in_memory_and_so_does_one_after_it(write_dataset: Write) -> None:
    pieces = [
        MeanStdFilter(as_learner_connector=True, clip_by_value=1.0),
        FrameStacking(num_frames=2, as_learner_connector=True),
        MeanStdFilter(as_learner_connector=True),
    ]
    data = write_dataset()
    with (
        loaded(data, pieces[:1], val_fraction=0.25) as whole,
        loaded(data, pieces[:1], val_fraction=0.25, streaming=True) as one,
    ):
        assert sorted(rows(one.train)) == sorted(rows(whole.train))
    both = [pieces[0], MeanStdFilter(as_learner_connector=True)]
    with loaded(data, both, val_fraction=0.25) as whole, loaded(data, both, val_fraction=0.25, streaming=True) as streamed:
        assert whole.trained is not None
        assert streamed.trained is not None
        assert str(streamed.trained.state) == str(whole.trained.state)
        assert rows(streamed.val) == rows(whole.val)


def test_rows_that_a_pipeline_masks_are_left_out(write_dataset: Write, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('kind = "learner"\n[[pieces]]\nname = "add_one_ts_to_episodes_and_truncate"\n')
    data = write_dataset()
    with loaded(data, tmp_path / "p.toml", streaming=True) as longer, loaded(data) as plain:
        assert sorted(rows(longer.train)) == sorted(rows(plain.train))


class MaskedByEpisode(ConnectorV2):
    """Masks whole episodes: those whose number `every` divides."""

    per_episode = True
    every = 3

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            kept = int(episode.id_.rpartition("-")[2]) % self.every != 0
            self.add_n_batch_items(batch, Columns.LOSS_MASK, [kept] * len(episode), len(episode), episode)
        return batch


class MaskedAltogether(MaskedByEpisode):
    per_episode = True
    every = 1


def test_parts_of_which_a_pipeline_masks_every_row_are_left_out(write_dataset: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_batches, "PART_BYTES", 1)
    data, piece = write_dataset(), MaskedByEpisode()
    with (
        loaded(data, [piece], val_fraction=0.5) as whole,
        loaded(data, [piece], val_fraction=0.5, streaming=True) as streamed,
    ):
        assert sorted(rows(streamed.train)) == sorted(rows(whole.train))
        assert rows(streamed.val) == rows(whole.val)


def test_a_mask_that_leaves_no_row_at_all_is_refused_streaming_too(write_dataset: Write) -> None:
    with pytest.raises(BadConfig, match="leaves no row"), loaded(write_dataset(), [MaskedAltogether()], streaming=True):
        pass
    assert readers() == []


def test_what_a_run_is_resumed_by_does_not_depend_on_how_episodes_are_read(write_dataset: Write, make_batch: Make) -> None:
    batch = make_batch()
    one = write_dataset(batch, name="one")
    two = [write_dataset(batch.select(slice(0, 5)), name="a"), write_dataset(batch.select(slice(5, 12)), name="b")]
    options = {"streaming": True, "val_fraction": 0.25}
    with loaded(one, **options) as first, loaded(two, **options) as second, loaded(one, **options, seed=1) as other:  # type: ignore[arg-type]
        assert first.digest == second.digest
        assert rows(first.train) == rows(second.train) != rows(other.train)


# ---- resuming ----


def comparable(run: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """The policy's bytes, and all rows of metrics without what the clock says."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    untimed = [{k: v for k, v in row.items() if k not in ("seconds", "samples_per_second")} for row in found]
    return (run / "policy.safetensors").read_bytes(), untimed


def test_a_run_stopped_again_and_again_ends_as_an_undisturbed_one(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "whole", config=config, **OPTIONS)
    for update in (7, 30, 45, 84):
        with pytest.raises(Interrupted):
            train_bc(data, tmp_path / "cut", config=config, resume=True, on_progress=signal_at(update), **OPTIONS)
        assert not readers()
    train_bc(data, tmp_path / "cut", resume=True)
    assert comparable(tmp_path / "cut") == comparable(tmp_path / "whole")


@pytest.mark.parametrize("streaming", [False, True], ids=["streaming", "another limit"])
def test_what_would_change_the_order_of_the_steps_is_refused_on_the_way(
    write_dataset: Write, config: Path, tmp_path: Path, streaming: bool
) -> None:
    data, change = write_dataset(), "memory_limit" if streaming else "streaming"
    train_bc(data, tmp_path / "run", config=config, updates=10, streaming=streaming)
    with pytest.raises(BadConfig, match=f"{change}: the run has"):
        train_bc(data, tmp_path / "run", updates=20, resume=True, streaming=True, memory_limit=2 << 30)


def test_a_run_in_memory_goes_on_under_another_limit(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "run", config=config, updates=10)
    assert train_bc(data, tmp_path / "run", updates=20, resume=True, memory_limit=2 << 30).updates == 20


def test_stores_of_another_layout_are_not_gone_on_with(
    write_dataset: Write, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "run", config=config, updates=10, streaming=True)
    monkeypatch.setattr(StoreForm, "within", lambda *args: StoreForm(window=60, pool=45, unit=5))
    with pytest.raises(BadConfig, match="the data differs"):
        train_bc(data, tmp_path / "run", updates=20, resume=True)


# ---- what cannot stream ----


class OfAll(ConnectorV2):
    """Somebody's own piece, which may look at all episodes."""

    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return batch


class OfEach(OfAll):
    per_episode: ClassVar[bool] = True


class Heir(OfEach):
    """Does not say it for itself."""


class Halving(SingleAgentObservationPreprocessor):
    def preprocess(self, observation: Any) -> Any:
        return observation / 2


def test_pieces_that_may_need_all_episodes_are_refused_by_name(write_dataset: Write) -> None:
    with (
        pytest.raises(BadConfig, match="OfAll may need all episodes at once") as caught,
        loaded(write_dataset(), [OfAll(), Heir()], streaming=True),
    ):
        pass
    assert len(caught.value.details["problems"]) == 2
    assert "per_episode = True" in caught.value.fix


@pytest.mark.parametrize("piece", [OfEach(), Halving(as_learner_connector=True)], ids=["says so", "preprocessor"])
def test_pieces_that_change_each_episode_by_itself_stream(write_dataset: Write, piece: ConnectorV2) -> None:
    data = write_dataset()
    with loaded(data, [piece]) as whole, loaded(data, [piece], streaming=True) as streamed:
        assert sorted(rows(streamed.train)) == sorted(rows(whole.train))


def test_one_episode_cannot_be_split_streaming_either(write_dataset: Write, make_batch: Make) -> None:
    data = write_dataset(make_batch(episodes=1))
    with pytest.raises(BadConfig, match="cannot be split"), loaded(data, streaming=True, val_fraction=0.5):
        pass


def test_a_source_that_changes_between_two_readings_is_refused(write_dataset: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    real, readings = TrainingSource.episodes, []

    def one_less(source: TrainingSource) -> Iterator[EpisodeBatch]:
        readings.append(1)
        return (batch.select(slice(0, len(batch) + 1 - len(readings))) for batch in real(source))

    monkeypatch.setattr(TrainingSource, "episodes", one_less)
    with pytest.raises(BadData, match="11 episodes, and 12 before"), loaded(write_dataset(), streaming=True, val_fraction=0.25):
        pass
    assert not readers()


def test_numbers_that_cannot_be_learned_from_are_refused_by_episode_and_step(write_dataset: Write, make_batch: Make) -> None:
    batch = make_batch()
    np.asarray(batch.obs)[batch.obs_starts[9] + 2] = np.nan
    with pytest.raises(BadData, match=r"first in episode episode-0-9, step 2"), loaded(write_dataset(batch), streaming=True):
        pass
    assert not readers()


# ---- disk and memory ----


def test_nothing_is_left_in_the_temporary_folder_and_nothing_is_seen_there(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    data, place, seen = write_dataset(), tmp_path / "temp", []
    place.mkdir()

    def look(progress: Progress) -> None:
        seen.append(list(place.iterdir()))

    train_bc(data, tmp_path / "run", config=config, temp_dir=str(place), on_progress=look, **OPTIONS)
    assert seen
    assert not any(seen)
    assert list(place.iterdir()) == []
    assert not readers()


def test_a_missing_temporary_folder_is_named(write_dataset: Write, tmp_path: Path) -> None:
    with pytest.raises(StorageNotFound, match="does not exist") as caught:
        train_bc(write_dataset(), tmp_path / "run", temp_dir=str(tmp_path / "nowhere"), streaming=True)
    assert "--temp-dir" in caught.value.fix


def test_a_full_disk_is_an_error_of_storage(write_dataset: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def seek(self, offset: int) -> None: ...
        def close(self) -> None: ...
        def write(self, data: memoryview) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    real = TempFile.__enter__

    def entered(file: TempFile) -> TempFile:
        real(file)
        file._file.close()
        file._file = Full()
        return file

    monkeypatch.setattr(TempFile, "__enter__", entered)
    with pytest.raises(StorageError, match="writing steps to a temporary file failed after 0 MB: no space left"):
        train_bc(write_dataset(), tmp_path / "run", streaming=True)
    assert not readers()


def test_a_limit_that_does_not_hold_torch_is_refused_before_anything_is_read(tmp_path: Path, write_dataset: Write) -> None:
    said: list[Progress] = []
    with pytest.raises(BadConfig, match="--memory-limit 200 MiB is too small: torch alone needs") as caught:
        train_bc(write_dataset(), tmp_path / "run", streaming=True, memory_limit=200 << 20, on_progress=said.append)
    assert "give at least 512 MiB" in caught.value.fix
    assert not said


def test_a_network_that_does_not_fit_beside_the_steps_is_refused(
    tmp_path: Path, write_dataset: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_store, "_resident", lambda: 300 << 20)
    (tmp_path / "c.toml").write_text("hidden = [4096, 4096]\n")
    with pytest.raises(BadConfig, match="training this network takes") as caught:
        train_bc(write_dataset(), tmp_path / "run", config=tmp_path / "c.toml", streaming=True, memory_limit=512 << 20)
    assert caught.value.where == "--memory-limit"


def test_a_batch_that_does_not_fit_on_its_way_through_the_network_is_refused(
    tmp_path: Path, write_dataset: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_store, "_resident", lambda: 300 << 20)
    (tmp_path / "c.toml").write_text("hidden = [512]\nupdates = 1\n")
    options: dict[str, Any] = {"config": tmp_path / "c.toml", "streaming": True, "memory_limit": 512 << 20}
    train_bc(write_dataset(), tmp_path / "small", batch_size=1000, **options)
    with pytest.raises(BadConfig, match="a smaller network or batch"):
        train_bc(write_dataset(name="again"), tmp_path / "run", batch_size=10_000, **options)  # 550 MiB were seen


def test_images_count_as_what_convolutions_make_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_store, "_resident", lambda: 300 << 20)
    space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    module = build_module(space, spaces.Discrete(2), hidden=(16,), action_scale="env", seed=0)
    learner = cloning_learner(module)
    columns = {"obs": torch.zeros((1, *space.shape), dtype=torch.uint8), "actions": torch.zeros(1, dtype=torch.int64)}
    store = MemoryStore(columns)
    memory_store.check_training_fits(512 << 20, "cpu", learner, store, 32)
    with pytest.raises(BadConfig, match="training this network takes"):
        memory_store.check_training_fits(512 << 20, "cpu", learner, store, 512)


@pytest.mark.parametrize("space", [spaces.Discrete(2, start=5), spaces.MultiDiscrete([2, 2], start=[5, 9])])
def test_actions_that_do_not_begin_at_zero_stream(
    tmp_path: Path, write_dataset: Write, make_batch: Make, space: spaces.Space[Any]
) -> None:
    batch = make_batch()
    actions = batch.actions + 5 if isinstance(space, spaces.Discrete) else batch.actions[:, None] + np.array([5, 9])
    data = write_dataset(replace(batch, actions=actions, action_space=space))
    assert train_bc(data, tmp_path / "run", streaming=True, updates=2, device="cpu").updates == 2


def test_finding_what_a_batch_takes_changes_neither_modules_nor_chance(loose: Learner) -> None:
    before, chance = {name: tensor.clone() for name, tensor in loose.state().items()}, torch.get_rng_state()
    columns = {"obs": torch.ones(4, 3), "actions": torch.ones(4, dtype=torch.int64)}
    memory_store.check_training_fits(512 << 20, "cpu", loose, MemoryStore(columns), 32)
    assert all(torch.equal(tensor, before[name]) for name, tensor in loose.state().items())
    assert torch.equal(chance, torch.get_rng_state())
    assert all(part.training for part in loose.whole.modules())


def test_held_out_rows_are_scored_in_evaluation_mode(loose: Learner) -> None:
    before, chance = {name: tensor.clone() for name, tensor in loose.state().items()}, torch.get_rng_state()
    store = MemoryStore({"obs": torch.ones(40, 3), "actions": torch.ones(40, dtype=torch.int64)})
    loader = StepLoader(store, batch_size=8, seed=0, device=torch.device("cpu"))
    assert score(loose, loader, "fp32") == score(loose, loader, "fp32")
    assert all(torch.equal(tensor, before[name]) for name, tensor in loose.state().items())
    assert torch.equal(chance, torch.get_rng_state())
    assert all(part.training for part in loose.whole.modules())


def test_a_process_that_is_too_large_already_is_refused(
    tmp_path: Path, write_dataset: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_store, "_resident", lambda: 500 << 20)
    with pytest.raises(BadConfig, match="the process takes 500 MiB already"):
        train_bc(write_dataset(), tmp_path / "run", streaming=True, memory_limit=512 << 20)


def test_what_is_fetched_ahead_from_a_bucket_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_store, "_resident", lambda: 350 << 20)
    shares = memory_store.Shares.of(512 << 20, "cpu")
    shares.check_start(fetched=False)
    with pytest.raises(BadConfig, match="the process takes 350 MiB already, and reading takes"):
        shares.check_start(fetched=True)


def test_data_that_memory_will_not_hold_is_refused_with_the_way_out(
    tmp_path: Path, write_dataset: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset()
    assert train_bc(data, tmp_path / "run", updates=1, memory_limit=1 << 30).updates == 1
    monkeypatch.setitem(memory_store.PROGRAM, "cpu", (1 << 30) - 20_000)
    with pytest.raises(BadConfig, match="in memory, of 1,024 MiB allowed") as caught:
        train_bc(data, tmp_path / "other", updates=1, memory_limit=1 << 30)
    assert "--streaming" in caught.value.fix


def test_recordings_without_a_step_are_no_data(tmp_path: Path, write_dataset: Write, make_batch: Make) -> None:
    batch = make_batch(episodes=2, length=1)
    with pytest.raises(NoData), loaded(write_dataset(batch.select(slice(0, 0))), streaming=True):
        pass


@pytest.mark.integration
@pytest.mark.skipif(os.name != "posix", reason="only there is an open file without a name")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_a_killed_run_leaves_nothing_in_the_temporary_folder(
    write_dataset: Write, config: Path, tmp_path: Path, number: signal.Signals
) -> None:
    place = tmp_path / "temp"
    place.mkdir()
    command = [
        sys.executable,
        "-m",
        "offline_cli",
        "train-bc",
        str(write_dataset()),
        "--out",
        str(tmp_path / "run"),
        "--streaming",
    ]
    command += ["--temp-dir", str(place), "--config", str(config), "--updates", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(timeout=60) == (130 if number == signal.SIGINT else -number)
    assert list(place.iterdir()) == []
