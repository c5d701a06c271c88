"""Names, categories and units of columns: what a dataset keeps of them, and what no command mixes without a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

import offline_cli
from offline_cli.errors import BadConfig

CallJson = Callable[..., tuple[int, dict[str, Any]]]

NAMES = ["temperature", "fan_speed", "power"]
TEXTS = ["down", "hold", "up"]
KEPT = {
    "obs": [{"name": "temperature", "unit": "K"}, {"name": "fan_speed"}, {"name": "power"}],
    "actions": [{"categories": TEXTS}],
    "rewards": [{"name": "saved"}],
}
OTHERS: dict[str, tuple[dict[str, Any], tuple[str, int, list[str]]]] = {
    "order of elements": (
        {"obs": ["power", "temperature", "fan_speed"]},
        ("obs", 0, ["name temperature", "name power"]),
    ),
    "names of elements": (
        {"obs": ["temperature", "humidity", "power"]},
        ("obs", 1, ["name fan_speed", "name humidity"]),
    ),
    "order of categories": (
        {"categories": ["up", "down", "hold"]},
        ("actions", 0, ["category 0 down", "category 0 up"]),
    ),
    "number of categories": (
        {"categories": [*TEXTS, "off"]},
        ("actions", 0, ["category 3 (none)", "category 3 off"]),
    ),
    "units": ({"units": {"temperature": "°C"}}, ("obs", 0, ["unit K", "unit °C"])),
    "what is rewarded": ({"rewards": "spent"}, ("rewards", 0, ["name saved", "name spent"])),
}


class Logs:
    """Tables of one plant, each with a mapping of its own, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def table(self, name: str, rewards: str = "saved") -> Path:
        """Two episodes of three steps, whose ids begin with the name."""
        path = self.folder / f"{name}.csv"
        steps = [
            f"{name}{e},{t},{20 + t},{t},{100 + t},{TEXTS[t]},{(e + t) % 3},{t},{t == 2}" for e in range(2) for t in range(3)
        ]
        columns = f"run,k,temperature,fan_speed,power,action,number,{rewards},done"
        path.write_text("\n".join([columns, *steps]).replace("fan_speed", self._second) + "\n", encoding="utf-8")
        return path

    _second = "fan_speed"

    def mapping(
        self,
        obs: Any = NAMES,
        categories: list[str] | None = TEXTS,
        units: dict[str, str] | None = None,
        rewards: str = "saved",
        **more: Any,
    ) -> dict[str, Any]:
        """Of such a table."""
        texts = {"actions": "number"} if categories is None else {"actions": "action"}
        return {
            "columns": {"eps_id": "run", "t": "k", "obs": obs, **texts, "rewards": rewards, "terminateds": "done"},
            "unmapped": "drop",
            **({} if categories is None else {"categories": {"action": categories}}),
            "units": {"temperature": "K"} if units is None else units,
            **more,
        }

    def source(self, name: str, **said: Any) -> tuple[Path, Path]:
        """A table and the file of its mapping, as arguments."""
        self._second = said["obs"][1] if "humidity" in said.get("obs", ()) else "fan_speed"
        path, file = self.table(name, said.get("rewards", "saved")), self.folder / f"{name}.json.toml"
        file.write_text(_toml(self.mapping(**said)), encoding="utf-8")
        return path, file

    def dataset(self, name: str, **said: Any) -> Path:
        """Such a table as a dataset."""
        table, mapping = self.source(name, **said)
        offline_cli.convert(table, self.folder / name, mapping=mapping)
        return self.folder / name


def _toml(mapping: dict[str, Any]) -> str:
    plain = [f"{key} = {json.dumps(value)}" for key, value in mapping.items() if not isinstance(value, dict)]
    tables = [
        "\n".join([f"[{key}]", *(f"{json.dumps(name)} = {json.dumps(one)}" for name, one in value.items())])
        for key, value in mapping.items()
        if isinstance(value, dict)
    ]
    return "\n".join([*plain, *tables]) + "\n"


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def manifest(dataset: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dataset / "manifest.json").read_text(encoding="utf-8"))
    return found


def refused(told: tuple[int, dict[str, Any]]) -> tuple[str, int, list[str]]:
    """Column, element and both meanings of an exit 4."""
    code, result = told
    error = result["error"]
    assert (code, error["code"]) == (4, "bad-config"), result
    assert all(Path(place).name.split(".")[0] in ("A", "B") for place in error["sources"])
    return error["column"], error["index"], error["said"]


# ---- what is kept ----


def test_the_manifest_has_what_the_mapping_of_a_table_says_of_its_columns(logs: Logs) -> None:
    assert manifest(logs.dataset("A"))["meanings"] == KEPT


def test_a_single_column_gives_its_name_and_a_part_of_a_dict_has_its_own(logs: Logs, tmp_path: Path) -> None:
    mapping = logs.mapping(obs="temperature")
    mapping["columns"] |= {"obs.fan": "fan_speed", "obs.all": NAMES}
    del mapping["columns"]["obs"]
    offline_cli.convert(logs.table("A"), tmp_path / "A", mapping=mapping)
    assert manifest(tmp_path / "A")["meanings"].keys() == {"obs.all", "actions", "rewards"}
    offline_cli.convert(logs.table("A"), tmp_path / "B", mapping=logs.mapping(obs="temperature"))
    assert manifest(tmp_path / "B")["meanings"]["obs"] == [{"name": "temperature", "unit": "K"}]


@pytest.mark.parametrize(
    "command",
    [
        ("convert",),
        ("merge",),
        ("repack", "--format", "columns"),
        ("filter", "--where", "length > 0"),
        ("sample", "--episodes", "1"),
    ],
    ids=" ".join,
)
def test_operations_keep_what_columns_mean(command: tuple[str, ...], call_json: CallJson, logs: Logs, tmp_path: Path) -> None:
    name, *options = command
    assert call_json(name, logs.dataset("A"), "--out", tmp_path / "out", *options)[0] == 0
    assert manifest(tmp_path / "out")["meanings"] == KEPT


@pytest.mark.parametrize("to", ["d4rl", "robomimic", "d3rlpy"])
def test_hdf5_files_that_we_write_keep_what_columns_mean(to: str, logs: Logs, tmp_path: Path) -> None:
    offline_cli.convert(logs.dataset("A"), tmp_path / "theirs.hdf5", to=to)
    offline_cli.convert(tmp_path / "theirs.hdf5", tmp_path / "again")
    assert {name: known[-1] for name, known in manifest(tmp_path / "again")["meanings"].items() if name != "obs"} == {
        name: known[-1] for name, known in KEPT.items() if name != "obs"
    }


def test_write_dataset_keeps_the_meanings_of_a_dataset_and_takes_others(logs: Logs, tmp_path: Path) -> None:
    dataset = offline_cli.open_dataset(logs.dataset("A"))
    offline_cli.write_dataset(dataset, tmp_path / "same")
    assert manifest(tmp_path / "same")["meanings"] == KEPT
    said = {"actions": [{"categories": ["a", "b", "c"]}]}
    offline_cli.write_dataset(dataset, tmp_path / "other", meanings=said)
    assert manifest(tmp_path / "other")["meanings"] == said
    with pytest.raises(BadConfig):
        offline_cli.write_dataset(dataset, tmp_path / "none", meanings={"obs": ["temperature"]})


# ---- what is compared ----


SEVERAL: list[tuple[str, ...]] = [
    ("merge", "--out", "out"),
    ("convert", "--out", "out"),
    ("filter", "--where", "length > 0", "--out", "out"),
    ("sample", "--episodes", "3", "--out", "out"),
    ("split", "--counts", "a=2,b=2", "--out", "out"),
    ("repack", "--out", "out"),
    ("apply", "--pipeline", "p.toml", "--out", "out"),
    ("train-bc", "--updates", "1", "--out", "out"),
    ("train", "--algorithm", "marwil", "--updates", "1", "--out", "out"),
    ("train", "--algorithm", "bc", "--weight", "A=0.5", "--weight", "B=0.5", "--updates", "1", "--out", "out"),
    ("inspect",),
]


@pytest.mark.parametrize(
    ("command", "other"), list(zip(SEVERAL, cycle(OTHERS))), ids=lambda one: one if isinstance(one, str) else " ".join(one[:4])
)
def test_no_command_that_takes_several_sources_mixes_columns_that_mean_different_things(
    command: tuple[str, ...], other: str, call_json: CallJson, logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text('kind = "learner"\n', encoding="utf-8")
    said, found = OTHERS[other]
    logs.dataset("A")
    logs.dataset("B", **said)
    name, *options = command
    assert refused(call_json(name, "A", "B", *options)) == found
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("other", ["order of elements", "order of categories"])
def test_a_run_does_not_begin_with_one_whose_columns_mean_different_things(
    other: str, call_json: CallJson, logs: Logs, tmp_path: Path
) -> None:
    said, found = OTHERS[other]
    learn = ("--algorithm", "bc", "--updates", "1", "--hidden", "4", "--device", "cpu")
    assert call_json("train", logs.dataset("A"), "--out", tmp_path / "A.run", *learn)[0] == 0
    begun = call_json("train", logs.dataset("B", **said), "--out", tmp_path / "out", "--init-from", tmp_path / "A.run", *learn)
    assert refused(begun) == found
    assert not (tmp_path / "out" / "policy.json").exists()


def test_a_run_begins_with_one_that_was_rewarded_for_something_else(call_json: CallJson, logs: Logs, tmp_path: Path) -> None:
    learn = ("--algorithm", "bc", "--updates", "1", "--hidden", "4", "--device", "cpu")
    other = logs.dataset("B", **OTHERS["what is rewarded"][0])
    assert call_json("train", logs.dataset("A"), "--out", tmp_path / "A.run", *learn)[0] == 0
    assert call_json("train", other, "--out", tmp_path / "out", "--init-from", tmp_path / "A.run", *learn)[0] == 0


def test_diff_tells_what_columns_mean_differently(call_json: CallJson, logs: Logs, tmp_path: Path) -> None:
    table = logs.table("A")
    offline_cli.convert(table, tmp_path / "A", mapping=logs.mapping())
    offline_cli.convert(table, tmp_path / "B", mapping=logs.mapping(units={"temperature": "°C"}))
    code, told = call_json("diff", tmp_path / "A", tmp_path / "B")
    assert (code, told["changed"], told["missing"]) == (7, 0, 0)
    assert told["first"] == {"episode": None, "step": None, "column": "obs", "index": [0], "a": "unit K", "b": "unit °C"}


def test_a_resumed_write_is_of_the_same_meanings(logs: Logs, tmp_path: Path) -> None:
    dataset = offline_cli.open_dataset(logs.dataset("A"))
    spaces: dict[str, Any] = {
        "observation_space": dataset.manifest.observation_space,
        "action_space": dataset.manifest.action_space,
        "max_rows_per_file": 1,
    }
    with pytest.raises(KeyboardInterrupt), offline_cli.DatasetWriter(tmp_path / "out", **spaces) as writer:
        writer.write(dataset[0:2])
        raise KeyboardInterrupt
    again = offline_cli.DatasetWriter(tmp_path / "out", **spaces, meanings=dataset.manifest.meanings, resume=True)
    with pytest.raises(BadConfig), again:
        pass


# ---- what only one says ----


def test_datasets_of_two_environments_are_an_assumption(logs: Logs, tmp_path: Path) -> None:
    mappings = [logs.mapping(environment=name) for name in ("Cold-v0", "Hot-v0")]
    for name, mapping in zip("AB", mappings, strict=True):
        offline_cli.convert(logs.table(name), tmp_path / name, mapping=mapping)
    found = offline_cli.merge([tmp_path / "A", tmp_path / "B"], tmp_path / "out")
    assert found.assumptions["mixed-environments"] == 1


def test_names_in_a_mapping_bring_two_tables_together(logs: Logs, tmp_path: Path) -> None:
    table, mapping = logs.source("B", **OTHERS["names of elements"][0], names={"humidity": "fan_speed"})
    offline_cli.convert(table, tmp_path / "B", mapping=mapping)
    assert offline_cli.merge([logs.dataset("A"), tmp_path / "B"], tmp_path / "out").episodes == 4
