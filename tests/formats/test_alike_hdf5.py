"""Groups of one form that are read together are what they are one by one."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
from hdf5_files import KINDS, assert_equal

from offline_cli.files.locations import open_location
from offline_cli.formats.hdf5.files import Hdf5File
from offline_cli.formats.hdf5.nodes import Alike, Node
from offline_cli.formats.hdf5.plain_file import PlainFile
from offline_cli.formats.hdf5.plain_messages import ATTRIBUTE, TABLE, AttributeKind, Unlike
from offline_cli.formats.hdf5.plain_objects import Header, PlainObjects

NUMBER = 60


def datasets_of(chance: random.Random, depth: int = 0) -> Iterator[tuple[str, str, tuple[int, ...], bool]]:
    """Path, dtype, sides but the first, whether it is in a chunk."""
    for number in range(chance.randrange(1, 5)):
        name = f"{chance.choice('aZ_ 0')}{number}"
        if depth < 2 and chance.random() < 0.3:
            yield from ((f"{name}/{below}", kind, tail, chunk) for below, kind, tail, chunk in datasets_of(chance, depth + 1))
        else:
            tail = tuple(chance.randrange(1, 4) for _ in range(chance.randrange(3)))
            yield name, chance.choice(KINDS), tail, chance.random() < 0.5


def write(path: Path, chance: random.Random, odd: set[int]) -> None:
    form, keys = list(datasets_of(chance)), [f"{chance.choice('bA')}{number}" for number in range(chance.randrange(7))]
    kinds = {key: chance.choice((*KINDS, "text", "vector")) for key in keys}
    with h5py.File(path, "w") as file:
        for number in range(NUMBER):
            group = file.create_group(f"episode_{number}")
            group.create_group("infos")
            for name, kind, tail, in_chunk in form:
                shape = (chance.randrange(1, 9), *tail)
                values = np.frombuffer(chance.randbytes(8 * 72), np.int64 if kind == "?" else kind)[: int(np.prod(shape))]
                values = (values > 0 if kind == "?" else values).reshape(shape)
                chunks = {"chunks": shape, "maxshape": (None, *tail)} if in_chunk else {}
                group.create_dataset(name, data=values, **chunks)
            for key, kind in kinds.items():
                group.attrs[key] = {
                    "text": "é" * chance.randrange(1, 90),
                    "vector": [chance.random(), number],
                }.get(kind) or np.frombuffer(chance.randbytes(8), np.uint8 if kind == "?" else kind)[0]
            if number in odd:
                group["odd"] = np.arange(number)


def one_by_one(alike: Alike) -> Iterator[tuple[str, Node]]:
    """As `load` gives them; without groups, which are not told."""
    for number, name in enumerate(alike.names):
        node = alike.part(number, number + 1).joined
        yield name, Node(alike.attributes[number], (), node.datasets, (), node.values)


@pytest.mark.parametrize("seed", range(12))
def test_groups_of_one_form_are_what_they_are_one_by_one(tmp_path: Path, seed: int) -> None:
    path, chance = tmp_path / "a.hdf5", random.Random(seed)
    odd = set(chance.sample(range(1, NUMBER), 3))
    write(path, chance, odd)
    names = [f"episode_{number}" for number in range(NUMBER)]
    with path.open("rb") as opened, PlainFile(opened.fileno()) as file:
        alike, fits = file.alike(names, {"b1"})
        assert not fits[list(odd)].any()
        assert fits.sum() > NUMBER - 6  # some are laid out in another way
        for name, node in one_by_one(alike):
            expected = file.node(name, {"b1"})
            assert_equal(node, Node(expected.attributes, (), expected.datasets, (), expected.values))


def test_parts_come_in_the_order_of_names(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    write(path, random.Random(3), {7, 8, 31})
    names = [f"episode_{number}" for number in range(NUMBER)]
    with Hdf5File(open_location(path)) as file:
        parts = list(file.alike(names))
        assert file._child is None
    assert sum(len(part.names) for part in parts if isinstance(part, Alike)) >= 28  # runs of fewer than 16 are not worth it
    assert {7, 8, 31} <= {names.index(name) for part in parts if not isinstance(part, Alike) for name in part}
    assert [name for part in parts for name in (part.names if isinstance(part, Alike) else part)] == names


def test_groups_that_are_all_different_are_compared_three_times_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        for number in range(400):
            file[f"episode_{number:03}/x{number % 3}"] = np.arange(3.0)
    alike = Mock(wraps=PlainFile.alike)
    monkeypatch.setattr(PlainFile, "alike", lambda self, *rest: alike(self, *rest))
    with Hdf5File(open_location(path)) as file:
        parts = list(file.alike(file.members()))
    assert alike.call_count == 3
    assert sum(len(part) for part in parts if not isinstance(part, Alike)) == 400


def test_damaged_groups_are_what_they_are_one_by_one_or_are_left(tmp_path: Path) -> None:
    """Bytes are changed where structure is: near others that are not zero."""
    path = tmp_path / "a.hdf5"
    write(path, random.Random(5), set())
    whole, rng = path.read_bytes(), random.Random(1)
    places = [at for at in range(len(whole)) if any(whole[max(0, at - 4) : at + 5])]
    names = [f"episode_{number}" for number in range(NUMBER)]
    answers = {"all": 0, "some": 0, "none": 0}
    for _ in range(150):
        data = bytearray(whole)
        for at in rng.sample(places, 20):
            data[at] = rng.choice((0, 1, 2, 16, 255, rng.randrange(256)))
        path.write_bytes(data)
        with path.open("rb") as opened:
            try:
                with PlainFile(opened.fileno()) as file:
                    alike, fits = file.alike(names)
            except Unlike:
                answers["none"] += 1
                continue
            with PlainFile(opened.fileno()) as file:
                for name, node in one_by_one(alike):
                    expected = file.node(name)
                    assert_equal(node, Node(expected.attributes, (), expected.datasets, (), expected.values))
        answers["all" if fits.all() else "some"] += 1
    assert answers["some"] > 20
    assert answers["none"] > 20


def one_form(path: Path, texts: int = 0, number: int = NUMBER) -> Path:
    with h5py.File(path, "w") as file:
        for episode in range(number):
            group = file.create_group(f"episode_{episode}")
            group["rewards"], group["infos/x"] = np.arange(3.0) + episode, np.arange(4) + episode
            for text in range(texts):
                group.attrs[f"t{text}"] = "abcdefgh"
    return path


def headers(path: Path, below: str = "") -> Iterator[tuple[int, Header]]:
    """Of each episode, or of what is `below` it."""
    with path.open("rb") as opened, PlainFile(opened.fileno()) as file, file._objects.question(1 << 40):
        for number in range(NUMBER):
            members = file._group(f"episode_{number}" if below else "")
            yield number, file._objects.header(members[(below or f"episode_{number}").encode()])


def changed(path: Path, data: bytearray) -> None:
    data[40:48] = struct.pack("<Q", len(data))  # where the file ends
    path.write_bytes(data)


def test_a_tree_of_names_whose_first_node_leads_to_an_empty_one_is_not_an_empty_group(tmp_path: Path) -> None:
    path = one_form(tmp_path / "a.hdf5")
    data = bytearray(path.read_bytes())
    for number, header in headers(path, "infos"):
        (tree,) = (struct.unpack_from("<Q", content)[0] for kind, content in header.messages if kind == TABLE)
        node = bytearray(data[tree : tree + 48])
        if number in (NUMBER // 2, NUMBER // 3):  # those that others are compared with
            node[6:8] = b"\0\0"
        data += bytes(-len(data) % 8)
        data[tree + 5], data[tree + 32 : tree + 40] = 1, struct.pack("<Q", len(data))
        data += node + bytes(500)
    changed(path, data)
    with path.open("rb") as opened, PlainFile(opened.fileno()) as file, pytest.raises(Unlike):
        file.alike([f"episode_{number}" for number in range(NUMBER)])


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("content", [b"\xff", b"a"])
def test_many_names_for_one_long_text_take_no_more_than_the_file_can_hold(
    content: bytes, together: bool, tmp_path: Path
) -> None:
    path, length = one_form(tmp_path / "a.hdf5", texts=2), (1 << 19) - 64
    data = bytearray(path.read_bytes())
    data += bytes(-len(data) % 8)
    place = len(data)
    data += struct.pack("<8sQHHIQ", b"GCOL\x01\0\0\0", 1 << 19, 1, 1, 0, length) + length * content + bytes(32)
    for number, header in headers(path):
        for (kind, told), (block, at) in zip(header.messages, header.places, strict=True):
            if kind == ATTRIBUTE and number not in (NUMBER // 2, NUMBER // 3):
                first = header.blocks[block][0] + at + AttributeKind.of(told).at
                data[first : first + 16] = struct.pack("<IQI", length, place, 1)
    changed(path, data)
    with path.open("rb") as opened, PlainFile(opened.fileno()) as file, pytest.raises(Unlike):
        names = [f"episode_{number}" for number in range(NUMBER)]
        held = file.alike(names) if together else [file.node(name) for name in names]
        assert held


def test_attributes_whose_values_are_in_many_lists_are_left_to_libhdf5(tmp_path: Path) -> None:
    path = one_form(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        for number in range(NUMBER):
            file[f"episode_{number}"].attrs["a"] = np.zeros((1000,) + 7 * (1,), np.int8)
    with path.open("rb") as opened, PlainFile(opened.fileno()) as file:
        with pytest.raises(Unlike):
            file.node("episode_3")
        with pytest.raises(Unlike):
            file.alike([f"episode_{number}" for number in range(NUMBER)])


def test_groups_far_from_each_other_are_compared_three_times_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each would cost reading all that lies between them."""
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        for number in range(0, 400, 2):
            file[f"episode_{number}/rewards"] = np.arange(3.0)
        file.create_dataset("between", data=np.zeros(40 << 17))
        for number in range(1, 400, 2):
            file[f"episode_{number}/rewards"] = np.arange(3.0)
    alike, read = Mock(wraps=PlainFile.alike), list[int]()
    bytes_at = PlainObjects.bytes_at
    monkeypatch.setattr(PlainFile, "alike", lambda self, *rest: alike(self, *rest))
    monkeypatch.setattr(PlainObjects, "bytes_at", lambda self, at, count: read.append(count) or bytes_at(self, at, count))
    with Hdf5File(open_location(path)) as opened:
        parts = list(opened.alike([f"episode_{number}" for number in range(400)]))
    assert (alike.call_count, any(isinstance(part, Alike) for part in parts)) == (3, False)
    assert sum(read) < 1 << 20


def test_two_forms_in_turn_do_not_make_a_batch_of_each_group(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        for number in range(600):
            file[f"episode_{number}/rewards"] = np.arange(3.0)
            if number % 3 == 0:
                file[f"episode_{number}"].attrs["seed"] = 7
    with Hdf5File(open_location(path)) as opened:
        parts = list(opened.alike([f"episode_{number}" for number in range(600)]))
    assert len(parts) <= 10


def test_tries_come_back_where_groups_are_alike(tmp_path: Path) -> None:
    """A few windows of another form do not slow down the rest of a large file."""
    path = one_form(tmp_path / "a.hdf5", number=200)
    with Hdf5File(open_location(path)) as opened:
        opened._tries = 1
        assert all(isinstance(part, Alike) for part in opened.alike([f"episode_{number}" for number in range(200)]))
        assert opened._tries == 2
