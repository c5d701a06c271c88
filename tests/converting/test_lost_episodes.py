"""Every episode of the source that is not in the dataset is counted, by the reason why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.checking.inspect import inspect
from offline_cli.converting.convert import ConvertResult, convert
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.errors import Interrupted
from offline_cli.storage.locations import open_location

LENGTH = 4
MAPPING = '[columns]\neps_id = "eps_id"\nt = "t"\nobs = "obs"\nactions = "actions"\nrewards = "rewards"\nterminateds = "done"\n'


def csv_of(
    episodes: int, bad: Sequence[tuple[int, int]] = (), *, length: int = LENGTH, ids: bool = True, t: bool = True
) -> str:
    """Episodes of `length` steps; the observation of the (episode, step) pairs in `bad` is no number."""
    names = [*(["eps_id"] if ids else []), *(["t"] if t else []), "obs", "actions", "rewards", "done"]
    rows = [",".join(names)]
    for episode in range(episodes):
        for step in range(length):
            obs = "oops" if (episode, step) in bad else f"{episode}.{step}"
            key = [*([f"e{episode}"] if ids else []), *([str(step)] if t else [])]
            rows.append(",".join([*key, obs, "1", "1.0", str(int(step == length - 1))]))
    return "\n".join(rows) + "\n"


def converted(tmp_path: Path, source: Path, on_error: str = "skip", **options: Any) -> tuple[ConvertResult, Manifest]:
    result = convert(source, tmp_path / "D", on_error=on_error, action_scale="env", **options)
    manifest = Dataset.open(open_location(tmp_path / "D")).manifest
    assert manifest.episodes_lost == result.episodes_lost == inspect(tmp_path / "D").episodes_lost
    lost = {kind: times for kind, times in manifest.assumptions.items() if kind.startswith("lost-episode-")}
    assert lost == {kind: times for kind, times in result.assumptions.items() if kind.startswith("lost-episode-")}
    assert sum(lost.values()) == (result.episodes_lost or 0)
    return result, manifest


def lost_of(result: ConvertResult) -> dict[str, int]:
    found = {kind: times for kind, times in result.assumptions.items() if kind.startswith("lost-episode-")}
    return {kind.removeprefix("lost-episode-"): times for kind, times in found.items()}


@pytest.fixture
def mapping(tmp_path: Path) -> str:
    (tmp_path / "mapping.toml").write_text(MAPPING, encoding="utf-8")
    return str(tmp_path / "mapping.toml")


# ---- RLlib's formats ----


def steps(name: str, **more: Any) -> dict[str, Any]:
    number = np.arange(LENGTH)
    return {
        "eps_id": [name] * LENGTH,
        "t": number,
        "obs": [[float(ord(name)), float(i)] for i in number],
        "new_obs": [[float(ord(name)), float(i + 1)] for i in number],
        "actions": number % 2,
        "rewards": np.ones(LENGTH),
        "terminateds": number == LENGTH - 1,
        **more,
    }


def tables(folder: Path, *files: dict[str, Any] | bytes) -> Path:
    folder.mkdir()
    for number, columns in enumerate(files):
        if isinstance(columns, bytes):
            (folder / f"{number}.parquet").write_bytes(columns)
        else:
            pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return folder


CASES: dict[str, tuple[list[dict[str, Any] | bytes], dict[str, int]]] = {
    "bad row": ([steps("a"), steps("b", rewards=[1, None, 1, 1])], {"bad-row": 1}),
    "only bad rows": ([steps("a"), steps("b", rewards=pa.nulls(LENGTH, pa.float64()))], {"bad-row": 1}),
    "damaged file": ([steps("a"), b"PAR1 and no more", steps("c")], {"unreadable": 1}),
    "gap": ([steps("a"), steps("b", t=np.array([0, 1, 3, 4]))], {"gap": 1}),
    "conflict": ([steps("a"), steps("a", rewards=np.zeros(LENGTH)), steps("a", rewards=np.full(LENGTH, 2.0))], {"conflict": 1}),
    "duplicate": ([steps("a"), steps("a")], {}),
    "copy with a bad row": ([steps("a"), steps("a", rewards=[1, 1, 1, None])], {}),
    "after the end": ([steps("a"), steps("b", terminateds=[False, True, False, True])], {"steps-after-end": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_lost_episodes_of_step_tables_are_counted_by_reason(case: str, tmp_path: Path) -> None:
    files, lost = CASES[case]
    result, _ = converted(tmp_path, tables(tmp_path / "source", *files))
    assert lost_of(result) == lost


# ---- from dataset to dataset ----


def test_a_resumed_conversion_counts_all_that_was_lost(mapping: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log.csv").write_text(csv_of(6, [(1, 0), (2, 0)]), encoding="utf-8")
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(DatasetWriter, "commit", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        convert(tmp_path / "log.csv", tmp_path / "D", on_error="skip", mapping=mapping, action_scale="env", max_rows_per_file=1)
    assert list((tmp_path / "D" / "data").iterdir())
    result, manifest = converted(tmp_path, tmp_path / "log.csv", mapping=mapping, max_rows_per_file=1, resume=True)
    assert (result.episodes, manifest.episodes_lost) == (4, 2)
