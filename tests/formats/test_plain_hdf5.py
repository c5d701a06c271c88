"""Groups that are read without libhdf5 are what libhdf5 reads; what has another form is left to it."""

from __future__ import annotations

import random
from pathlib import Path

import h5py
import numpy as np
import pytest
from hdf5_files import assert_equal, by_libhdf5, fill, values

from offline_cli.errors import BadData
from offline_cli.files.locations import open_location
from offline_cli.formats.hdf5.files import Hdf5File
from offline_cli.formats.hdf5.plain_file import PlainFile
from offline_cli.formats.hdf5.plain_messages import Unlike


@pytest.mark.parametrize("seed", range(12))
def test_any_tree_of_small_datasets_is_what_libhdf5_reads(tmp_path: Path, seed: int) -> None:
    path, chance = tmp_path / "a.hdf5", random.Random(seed)
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
            except Unlike:  # what has no bytes may have no place
                assert any(0 in shape for _, shape in expected.datasets.values()) or "[]" in repr(expected.attributes)


def test_a_thousand_episodes_of_minari_start_no_process(tmp_path: Path) -> None:
    path = tmp_path / "main_data.hdf5"
    with h5py.File(path, "w") as file:
        for number in range(1000):
            group = file.create_group(f"episode_{number}")
            group.attrs.update(id=number, seed=7, total_steps=3)
            for name, rows in (("observations", 4), ("actions", 3), ("rewards", 3), ("terminations", 3), ("truncations", 3)):
                values = np.full(rows, number, "?" if name in ("terminations", "truncations") else "<f4")
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


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Every form of datasets and attributes that is known."""
    path = tmp_path / "mixed.hdf5"
    with h5py.File(path, "w") as file:
        for number in range(3):
            group = file.create_group(f"episode_{number}")
            group.attrs.update(seed=number, scale=[0.5, 1.5], name=f"run {number}", flag=np.True_)
            group["whole"], group["scalar"], group["inner/x"] = np.arange(5.0), np.float32(number), np.arange(3, dtype="i2")
            group.create_dataset("one", data=np.arange(6).reshape(3, 2), chunks=(3, 2), maxshape=(None, 2))
            group.create_dataset("four", data=np.arange(9, dtype="f4").reshape(3, 3), chunks=(2, 2))
            group.create_dataset("flags", data=[True, False], chunks=(4,), maxshape=(None,))
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple((4,))
            h5py.h5d.create(group.id, b"compact", h5py.h5t.NATIVE_INT32, space, plist).write(
                h5py.h5s.ALL, h5py.h5s.ALL, np.arange(4, dtype="i4")
            )
    return path


def test_every_known_form_is_read(mixed: Path) -> None:
    with mixed.open("rb") as opened, PlainFile(opened.fileno()) as file:
        names = file.members("")
        for name, expected in zip(names, by_libhdf5(mixed, names), strict=True):
            assert_equal(file.node(name), expected)


def test_damaged_files_have_no_other_values_than_libhdf5_reads(mixed: Path) -> None:
    """Bytes are changed where structure is: near others that are not zero. What libhdf5 refuses may be read."""
    whole, rng = mixed.read_bytes(), random.Random(7)
    places = [at for at in range(len(whole)) if any(whole[max(0, at - 4) : at + 5])]
    answers = {"equal": 0, "left": 0, "refused": 0}
    for _ in range(60):
        data = bytearray(whole)
        for at in rng.sample(places, 3):
            data[at] = rng.choice((0, 1, 2, 16, 255, rng.randrange(256)))
        mixed.write_bytes(data)
        try:
            with mixed.open("rb") as opened, PlainFile(opened.fileno()) as file:
                found = [file.node(name) for name in file.members("")]
        except Unlike:
            answers["left"] += 1
            continue
        try:
            for one, other in zip(found, by_libhdf5(mixed, [f"episode_{number}" for number in range(3)]), strict=True):
                assert_equal(one, other)
            answers["equal"] += 1
        except BadData:
            answers["refused"] += 1
    assert answers["equal"] > 5
    assert answers["left"] > 5


def test_damaged_files_raise_nothing_else(mixed: Path) -> None:
    whole, rng, answers = mixed.read_bytes(), random.Random(0), {"read": 0, "left": 0}
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 3))):
            at, size = rng.randrange(len(data)), rng.choice((1, 1, 4, 8))
            data[at : at + size] = rng.choice((rng.randbytes(size), b"\xff" * size, b"\0" * size))
        mixed.write_bytes(data[: rng.randrange(len(data)) if rng.random() < 0.1 else len(data)])
        try:
            with mixed.open("rb") as opened, PlainFile(opened.fileno()) as file:
                for name in file.members("")[:40]:
                    file.node(name)
            answers["read"] += 1
        except Unlike:
            answers["left"] += 1
    assert min(answers.values()) > 100


def test_a_tree_that_leads_to_itself_ends(mixed: Path) -> None:
    data = bytearray(mixed.read_bytes())
    for at in (at for at in range(len(data)) if data.startswith(b"TREE", at)):
        data[at + 5] = 30  # its level
        data[at + 6 : at + 8] = b"\x02\0"
        data[at + 32 : at + 40] = data[at + 48 : at + 56] = at.to_bytes(8, "little")
    mixed.write_bytes(data)
    with mixed.open("rb") as opened, PlainFile(opened.fileno()) as file, pytest.raises(Unlike):
        file.members("")


def test_names_that_share_their_bytes_are_left_to_libhdf5(tmp_path: Path) -> None:
    """Each could be as long as all of them."""
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        for letter in "abc":
            file[letter * 100] = np.arange(3.0)
    data = bytearray(path.read_bytes())
    node = data.index(b"SNOD") + 8
    first = int.from_bytes(data[node : node + 8], "little")
    for number in (1, 2):
        data[node + 40 * number : node + 40 * number + 8] = (first + number).to_bytes(8, "little")
    path.write_bytes(data)
    with path.open("rb") as opened, PlainFile(opened.fileno()) as file, pytest.raises(Unlike):
        file.members("")


def test_a_truncated_file_is_refused_at_once(mixed: Path) -> None:
    mixed.write_bytes(mixed.read_bytes()[:-8])
    with pytest.raises(BadData, match="truncated file"), Hdf5File(open_location(mixed)):
        pass


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
