"""docs/library.md: its examples run, and what it says of closing is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from offline_cli import open_dataset
from offline_cli.converting.convert import convert
from offline_cli.errors import NoData

PAGE = Path(__file__).resolve().parents[1] / "docs" / "library.md"


def ran(number: int) -> dict[str, Any]:
    """What an example of the page leaves."""
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(examples[number], names)
    return names


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    rows = [f"{episode},{0.5 * step},{step % 2},1,{int(step == 2)}" for episode in range(4) for step in range(3)]
    (tmp_path / "log.csv").write_text("\n".join(["eps_id,obs,actions,rewards,terminateds", *rows]) + "\n", encoding="utf-8")
    convert(tmp_path / "log.csv", tmp_path / "dataset")
    return tmp_path / "dataset"


def test_the_example_of_reading_runs(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(dataset.parent)
    names = ran(1)
    assert names["returns"] == [3.0] * 4
    assert len(names["observations"]) == 4
    assert capsys.readouterr().out.endswith("4 episodes, mean return 3.0\n")


def test_the_example_of_a_command_as_a_function_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ran(0)
    assert names["recorded"].episodes == 20
    told = capsys.readouterr().out
    assert (
        told == f"{names['recorded'].steps}\nrecord() got an unexpected keyword argument 'epsiodes'. Did you mean 'episodes'?\n"
    )


def test_a_dataset_can_be_read_after_the_end_of_its_block_which_hides_no_error(dataset: Path) -> None:
    with open_dataset(dataset) as opened:
        pass
    with opened.batches() as batches:
        assert sum(map(len, batches)) == 4
    with pytest.raises(KeyError), open_dataset(dataset):
        raise KeyError
    with pytest.raises(NoData), open_dataset(dataset / "data"):
        pass
