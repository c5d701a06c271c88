"""Groups that are read without libhdf5 are what libhdf5 reads; what has another form is left to it."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_trees import FOREIGN

from offline_cli.files.locations import open_location
from offline_cli.formats.hdf5.files import Hdf5File
from offline_cli.formats.hdf5.nodes import Node
from offline_cli.formats.hdf5.plain_file import PlainFile
from offline_cli.formats.hdf5.plain_messages import Unlike

KINDS = ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8")


def values(chance: random.Random) -> Any:
    shape = tuple(chance.randrange(6) for _ in range(chance.randrange(4)))
    return np.frombuffer(chance.randbytes(8 * 125), chance.choice(KINDS[1:]))[: math.prod(shape)].reshape(shape).copy()


def fill(group: Any, chance: random.Random, depth: int = 0) -> None:
    for number in range(chance.randrange(12)):
        name, value = f"{chance.choice('aZ_ 0')}{number}", values(chance)
        if depth < 3 and chance.random() < 0.2:
            fill(group.create_group(name), chance, depth + 1)
        elif value.size and value.ndim and chance.random() < 0.7:  # in one chunk, as Minari has it, or in several
            chunks = tuple(max(1, side // chance.choice((1, 2, 3))) for side in value.shape)
            group.create_dataset(name, data=value, chunks=chunks, maxshape=(None, *value.shape[1:]))
        else:
            group[name] = value if chance.random() < 0.8 else value > 2


def by_libhdf5(path: Path, names: list[str]) -> list[Node]:
    with Hdf5File(open_location(path)) as file:
        file._plain = None
        return list(file.load(names))


def assert_equal(one: Node, other: Node) -> None:
    assert repr(one.attributes) == repr(other.attributes)  # so that NaN is NaN
    assert list(one.attributes) == list(other.attributes)
    assert (list(one.datasets.items()), one.groups, one.left_out) == (
        list(other.datasets.items()),
        other.groups,
        other.left_out,
    )
    assert one.values.keys() == other.values.keys()
    for name, values in one.values.items():
        assert values.dtype == other.values[name].dtype
        np.testing.assert_array_equal(values, other.values[name])


@pytest.mark.parametrize("seed", range(12))
def test_any_tree_of_small_datasets_is_what_libhdf5_reads(tmp_path: Path, seed: int) -> None:
    path, chance, plain = tmp_path / "a.hdf5", random.Random(seed), 0
    with h5py.File(path, "w") as file:
        for number in range(20):
            group = file.create_group(f"episode_{number}")
            fill(group, chance)
            for key in range(chance.randrange(6)):
                group.attrs[f"{chance.choice('bA')}{key}"] = (
                    values(chance) if chance.random() < 0.7 else "é" * chance.randrange(900)
                )
    with path.open("rb") as opened, PlainFile(opened.fileno()) as file:
        names = file.members("")
        for name, expected in zip(names, by_libhdf5(path, names), strict=True):
            try:
                assert_equal(file.node(name), expected)
                plain += 1
            except Unlike:  # what has no bytes may have no place
                assert any(0 in shape for _, shape in expected.datasets.values()) or "[]" in repr(expected.attributes)
    assert plain >= 2


def test_a_thousand_episodes_of_minari_start_no_process(tmp_path: Path) -> None:
    path = tmp_path / "main_data.hdf5"
    with h5py.File(path, "w") as file:
        for number in range(1000):
            group = file.create_group(f"episode_{number}")
            group.attrs.update(id=number, seed=7, total_steps=3)
            for name, rows in (("observations", 4), ("actions", 3), ("rewards", 3), ("terminations", 3), ("truncations", 3)):
                values = np.full(rows, number, "?" if "ations" in name[3:] and name[0] == "t" else "<f4")
                group.create_dataset(name, data=values, chunks=True, maxshape=(None,))
            group.create_group("infos")
    with Hdf5File(open_location(path)) as file:
        nodes = list(file.load(file.members(), passed_over={"total_steps"}))
        assert file._child is None
    assert len(nodes) == 1000
    assert sorted(node.attributes["id"] for node in nodes) == list(range(1000))
    assert all((node.values["rewards"] == node.attributes["id"]).all() for node in nodes)


@pytest.mark.parametrize("libver", ["latest", "v110"])
def test_newer_forms_of_the_format_are_left_to_libhdf5(tmp_path: Path, libver: str) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w", libver=libver) as file:
        file["episode_0/rewards"] = np.arange(3.0)
    with path.open("rb") as opened, pytest.raises(Unlike), PlainFile(opened.fileno()):
        pass
    with Hdf5File(open_location(path)) as file:
        assert next(file.load(["episode_0"])).values["rewards"].tolist() == [0, 1, 2]


OTHER = {
    "compressed": lambda group: group.create_dataset("x", data=np.arange(9.0), compression="gzip"),
    "of the other byte order": lambda group: group.create_dataset("x", data=np.arange(9, dtype=">i4")),
    "texts": lambda group: group.create_dataset("x", data=["a", "b"]),
    "never written": lambda group: group.create_dataset("x", (9,), "f4", chunks=(3,)),
    "a soft link": lambda group: group.__setitem__("x", h5py.SoftLink("/b")),
    "a group with two names": lambda group: group.__setitem__("x", group.file["b"]),
    "an attribute of several texts": lambda group: group.attrs.__setitem__("x", ["some", "words"]),
    "an attribute that is text of one length": lambda group: group.attrs.__setitem__("x", np.bytes_("words")),
    "beyond what is held": lambda group: group.create_dataset("x", data=np.zeros(9 << 20, np.uint8)),
}


@pytest.mark.parametrize("words", OTHER)
def test_an_object_in_another_form_is_left_to_libhdf5(tmp_path: Path, words: str) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["b/y"] = np.arange(3.0)
        OTHER[words](file.create_group("a"))
    with path.open("rb") as opened, PlainFile(opened.fileno()) as file:
        with pytest.raises(Unlike):
            file.node("a")
        assert words == "a group with two names" or file.node("b").values["y"].tolist() == [0, 1, 2]


def test_a_damaged_file_gives_values_of_the_same_form_or_is_left_to_libhdf5(tmp_path: Path) -> None:
    whole, path, rng = (FOREIGN / "minari_hdf5/data/main_data.hdf5").read_bytes(), tmp_path / "a.hdf5", random.Random(0)
    with h5py.File(path, "w") as file:
        for number in range(20):
            file[f"episode_{number}/rewards"] = np.arange(5.0)
            file[f"episode_{number}"].attrs["seed"] = number
    wholes, seen = (whole, path.read_bytes()), {"read": 0, "left": 0}
    for _ in range(1000):
        data = bytearray(rng.choice(wholes))
        for _ in range(rng.choice((1, 3))):
            at, size = rng.randrange(len(data)), rng.choice((1, 1, 4, 8))
            data[at : at + size] = rng.choice((rng.randbytes(size), b"\xff" * size, b"\0" * size))
        path.write_bytes(data[: rng.randrange(len(data)) if rng.random() < 0.1 else len(data)])
        try:
            with path.open("rb") as opened, PlainFile(opened.fileno()) as file:
                for name in file.members("")[:40]:
                    node = file.node(name)
                    assert all(values.shape == node.datasets[key][1] for key, values in node.values.items())
            seen["read"] += 1
        except Unlike:
            seen["left"] += 1
    assert min(seen.values()) > 50


def test_many_names_for_the_same_values_take_no_more_memory_than_one_group_may(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["a/0"] = np.zeros(1 << 20, np.uint8)
        for number in range(1, 100):
            file[f"a/{number}"] = file["a/0"]
        for number in range(40):
            file.require_group("b").attrs[str(number)] = "x" * 60_000
    with path.open("rb") as opened, PlainFile(opened.fileno()) as file:
        for name in ("a", "b"):
            with pytest.raises(Unlike):
                file.node(name)
