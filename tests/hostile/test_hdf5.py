"""HDF5 files that lead elsewhere, unfold or are damaged: refused by name and place before a value of them is read."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_trees import FOREIGN, d4rl, read, write

from offline_cli.converting.convert import convert
from offline_cli.errors import BadData, MissingPackage, NoData, UnsafeData
from offline_cli.storage.locations import open_location

Spoil = Callable[[Any, Path], object]


def external_storage(file: Any, folder: Path) -> None:
    (folder / "raw").write_bytes(bytes(800))
    space, plist = h5py.h5s.create_simple((100,)), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_external(str(folder / "raw").encode(), 0, 800)
    h5py.h5d.create(file.id, b"extra", h5py.h5t.NATIVE_DOUBLE, space, plist)


def virtual(file: Any, folder: Path) -> None:
    layout = h5py.VirtualLayout((100,), "f8")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "x", (100,))
    file.create_virtual_dataset("extra", layout)


def unknown_filter(file: Any, _: Path) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((100,))
    plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))  # zstd, of a plug-in
    h5py.h5d.create(file.id, b"extra", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((100,)), plist)


def link(target: Any) -> Spoil:
    return lambda file, _: file.__setitem__("extra", target)


def soft_to_external(file: Any, _: Path) -> None:
    file["away"] = h5py.ExternalLink("other.h5", "/")
    file["extra"] = h5py.SoftLink("/away/x")


REFUSED: dict[str, tuple[Spoil, type[BadData]]] = {
    "external link": (link(h5py.ExternalLink("other.h5", "/x")), UnsafeData),
    "soft link through an external one": (soft_to_external, UnsafeData),
    "soft link within the file": (link(h5py.SoftLink("/actions")), UnsafeData),
    "external storage": (external_storage, UnsafeData),
    "virtual dataset": (virtual, UnsafeData),
    "filter of a plug-in": (unknown_filter, UnsafeData),
    "bomb": (lambda file, _: file.create_dataset("extra", (100, 1 << 30), "f8", chunks=(1, 1 << 16)), BadData),
    "references": (lambda file, _: file.create_dataset("extra", (9,), h5py.ref_dtype), UnsafeData),
    "records": (lambda file, _: file.__setitem__("extra", np.zeros(9, [("a", "f4"), ("b", "i4")])), UnsafeData),
    "nested deep": (lambda file, _: file.__setitem__("/".join("a" * 40), np.zeros(9)), BadData),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_leads_elsewhere_or_unfolds_is_refused_by_place(name: str, tmp_path: Path) -> None:
    spoil, kind = REFUSED[name]
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.arange(100.0)
    path = write(tmp_path / "a.hdf5", d4rl(100))
    with h5py.File(path, "a") as file:
        spoil(file, tmp_path)
    with pytest.raises(BadData) as caught:
        read(path)
    assert type(caught.value) is kind
    assert "a.hdf5" in caught.value.where


def test_known_filters_are_read(tmp_path: Path) -> None:
    arrays = d4rl(100)
    with h5py.File(write(tmp_path / "a.hdf5", arrays), "a") as file:
        del file["observations"]
        file.create_dataset("observations", data=arrays["observations"], compression="gzip", shuffle=True, fletcher32=True)
    np.testing.assert_array_equal(read(tmp_path / "a.hdf5")[1].acted_obs(), arrays["observations"])


def test_damaged_chunks_are_bad_data_by_their_place(tmp_path: Path) -> None:
    arrays = d4rl(100)
    with h5py.File(write(tmp_path / "a.hdf5", arrays), "a") as file:
        del file["rewards"]
        kept = file.create_dataset("rewards", data=arrays["rewards"], chunks=(100,), fletcher32=True)
        at = kept.id.get_chunk_info(0).byte_offset
    data = bytearray((tmp_path / "a.hdf5").read_bytes())
    data[at + 3] ^= 1
    (tmp_path / "a.hdf5").write_bytes(data)
    with pytest.raises(BadData) as caught:
        read(tmp_path / "a.hdf5")
    assert caught.value.where.endswith("rewards")


def test_without_h5py_the_line_to_install_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
) -> None:
    path = write(tmp_path / "a.hdf5", d4rl(20))
    convert(path, tmp_path / "D")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for words, extra in (
        (("convert", path, "--out", tmp_path / "E"), "hdf5"),
        (("convert", tmp_path / "D", "--to", "minari", "--out", tmp_path / "M"), "minari"),
    ):
        code, told = call(*words)
        assert (code, told["error"]["fix"]) == (6, f"pip install 'offline-cli[{extra}]'")
    with pytest.raises(MissingPackage):
        read(FOREIGN / "minari_hdf5")
    assert len(read(FOREIGN / "minari_arrow")[1]) == 2  # needs no h5py


def test_an_unknown_layout_is_nobodys_and_minaris_file_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        read(write(tmp_path / "a.h5", {"x": np.zeros(3)}))
    with pytest.raises(BadData):
        read(FOREIGN / "minari_hdf5" / "data" / "main_data.hdf5")


def test_a_file_elsewhere_is_copied_and_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", d4rl(100))
    place = open_location("memory://hdf5-test/a.hdf5")
    with place.fs.open(place.path, "wb") as target:
        target.write(path.read_bytes())
    assert read("memory://hdf5-test/a.hdf5")[1].num_steps == 100
    convert(path, "memory://hdf5-test/b.hdf5", to="d4rl")
    assert read("memory://hdf5-test/b.hdf5")[1].num_steps == 100
