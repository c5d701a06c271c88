"""docs/library.md: its examples run, and what it says of closing is so."""

from __future__ import annotations

import re
import shutil
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
    assert told == f"{names['recorded'].steps}\nrecord() got an unexpected keyword argument 'epsiodes'\n"


def recipes() -> dict[str, list[str]]:
    """The examples of each recipe, by its heading."""
    parts = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: re.findall(r"```python\n(.*?)```", part, re.DOTALL) for part in parts}


SAYS = {
    "1.": r"\d+ of 50 episodes, \d+ steps\n",
    "2.": r"loss 0\.\d+\n",
    "3.": r"True\n",
    "4.": r"50\n",
    "5.": "",
    "6.": r"3 \d+\n3 12\n",
    "7.": r"\w+ [\d.]+ [\d.]+\n\{.*\}\n",
    "8.": r"25 \{'left'\}\n",
    "9.": r"True\n",
    "10.": r"True\n0\.\d+ 0\.\d+ \{'left': [\d.]+, 'right': [\d.]+\}\n\['(left|right)' '(left|right)'\]\n",
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the recipes work on."""
    folder = tmp_path_factory.mktemp("recipes")
    (example,) = [
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL) if "seed=1" in text
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(example, {})
    return folder / "dataset"


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_stands_alone_and_says_what_it_should(
    name: str, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(recording, tmp_path / "dataset")
    monkeypatch.chdir(tmp_path)
    for example in recipes()[name]:
        exec(example, {"__name__": "recipe"})
    assert re.fullmatch(SAYS[name.partition(" ")[0]], capsys.readouterr().out)


def test_a_dataset_can_be_read_after_the_end_of_its_block_which_hides_no_error(dataset: Path) -> None:
    with open_dataset(dataset) as opened:
        pass
    with opened.batches() as batches:
        assert sum(map(len, batches)) == 4
    with pytest.raises(KeyError), open_dataset(dataset):
        raise KeyError
    with pytest.raises(NoData), open_dataset(dataset / "data"):
        pass
