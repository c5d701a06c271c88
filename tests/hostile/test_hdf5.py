"""HDF5 files that lead elsewhere, unfold, crash or hang: refused by name, in a process that can do no harm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_trees import FOREIGN, d4rl, read, robomimic, write

from offline_cli.converting.convert import convert
from offline_cli.converting.reading import read_episodes
from offline_cli.engines import template_process
from offline_cli.errors import BadData, MissingPackage, NoData, UnsafeData
from offline_cli.files.locations import open_location
from offline_cli.formats.hdf5 import files
from offline_cli.formats.hdf5.files import Hdf5File

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


def unknown_filter(file: Any, folder: Path) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((100,))
    plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))  # zstd, of a plug-in
    h5py.h5d.create(file.id, b"extra", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((100,)), plist)


def bomb(file: Any, folder: Path) -> None:
    file.create_dataset("extra", (100, 1 << 30), "f8", chunks=(1, 1 << 16))


def texts_that_vary(file: Any, folder: Path) -> None:
    file.create_dataset("extra", (100,), h5py.vlen_dtype(np.int32))


def references(file: Any, folder: Path) -> None:
    file.create_dataset("extra", (100,), h5py.ref_dtype)


def records(file: Any, folder: Path) -> None:
    file["extra"] = np.zeros(100, [("a", "f4"), ("b", "i4")])


def deep(file: Any, folder: Path) -> None:
    file["/".join("a" * 1 for _ in range(40)) + "/x"] = np.zeros(100)


REFUSED = {
    "an external link": (lambda file, folder: file.__setitem__("extra", h5py.ExternalLink("other.h5", "/x")), UnsafeData),
    "a soft link": (lambda file, folder: file.__setitem__("extra", h5py.SoftLink("/actions")), UnsafeData),
    "external storage": (external_storage, UnsafeData),
    "a virtual dataset": (virtual, UnsafeData),
    "filter 32015": (unknown_filter, UnsafeData),
    "stored bytes": (bomb, BadData),
    "the type vlen": (texts_that_vary, UnsafeData),
    "the type reference": (references, UnsafeData),
    "the type compound": (records, UnsafeData),
    "nested more than 32 deep": (deep, BadData),
    "a group with several names": (lambda file, folder: file.__setitem__("infos/again", file["/"]), UnsafeData),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_leads_elsewhere_or_unfolds_is_refused_by_name_and_place(words: str, tmp_path: Path) -> None:
    spoil, kind = REFUSED[words]
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.arange(100.0)
    path = write(tmp_path / "a.hdf5", d4rl(100))
    with h5py.File(path, "a") as file:
        spoil(file, tmp_path)
    with pytest.raises(BadData, match=words) as caught:
        read(path)
    assert type(caught.value) is kind
    assert "a.hdf5" in caught.value.where
    assert caught.value.fix


def test_links_in_demonstrations_are_refused_too(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_3/actions"]
        file["data/demo_3/actions"] = h5py.ExternalLink("/etc/passwd", "/")
    with pytest.raises(UnsafeData, match="an external link") as caught:
        read(path)
    assert caught.value.where.endswith("data/demo_3/actions")


def test_a_crash_of_the_library_is_bad_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.hdf5", d4rl(20))
    with Hdf5File(open_location(path)) as file, pytest.raises(BadData, match=r"crashed on this file \(SIGSEGV\)"):
        file.describe([""])
        assert file._child is not None
        os.kill(file._child.pid, 11)
        file.describe([""])


def test_a_question_that_takes_too_long_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.hdf5", d4rl(20))
    with Hdf5File(open_location(path)) as file:
        file.describe([""])
        assert file._child is not None
        os.kill(file._child.pid, 19)  # stopped: it does not even get its own signal
        file._child.socket.settimeout(0.2)
        with pytest.raises(BadData, match="took more than 60 seconds"):
            file.describe([""])


def test_memory_of_the_process_is_bounded(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", {})
    with h5py.File(path, "a") as file:
        values = np.random.default_rng(0).integers(0, 255, 24 << 20, np.uint8)
        file.create_dataset("rewards", data=values, chunks=values.shape, compression="gzip", compression_opts=1)
    with (
        Hdf5File(open_location(path), room=16 << 20) as file,
        pytest.raises(BadData, match="more than 16 MiB of memory"),
    ):
        file.rows([("rewards", 0, 10)], [("|u1", (24 << 20,))])


def test_no_process_is_left_by_a_reading_that_stops_halfway(tmp_path: Path) -> None:
    (tmp_path / "F").mkdir()
    for number in range(3):
        write(tmp_path / "F" / f"{number}.hdf5", d4rl(100, seed=number))
    with read_episodes([str(tmp_path / "F")]) as stream:
        next(iter(stream))
    assert children() == []


def children() -> list[str]:
    """Processes that were forked from a template of this process, and still run."""
    template = template_process._templates[(os.getpid(), files.CHILD)]
    listed = Path(f"/proc/{template._process.pid}/task/{template._process.pid}/children").read_text()
    return listed.split()


@pytest.mark.nightly
def test_a_template_that_was_killed_is_started_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", d4rl(20))
    read(path)
    template = template_process._templates[(os.getpid(), files.CHILD)]
    template._process.kill()
    template._process.wait()
    assert len(read(path)[1]) == 2


@pytest.mark.integration
def test_the_template_ends_with_its_process(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", d4rl(20))
    code = (
        "import sys; from offline_cli.converting.reading import read_episodes; list(read_episodes([sys.argv[1]]));"
        "from offline_cli.engines.template_process import _templates; print([t._process.pid for t in _templates.values()][0])"
    )
    pid = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout.strip()
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_without_h5py_the_line_to_install_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
) -> None:
    path = write(tmp_path / "a.hdf5", d4rl(20))
    convert(path, tmp_path / "D")
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    for words, extra in (
        (("convert", path, "--out", tmp_path / "E"), "hdf5"),
        (("convert", tmp_path / "D", "--to", "d4rl", "--out", tmp_path / "b.hdf5"), "hdf5"),
        (("convert", tmp_path / "D", "--to", "minari", "--out", tmp_path / "M"), "minari"),
    ):
        code, told = call(*words)
        assert (code, told["error"]["fix"]) == (6, f"pip install 'offline-cli[{extra}]'")
    with pytest.raises(MissingPackage):
        read(FOREIGN / "minari_hdf5")
    assert len(read(FOREIGN / "minari_arrow")[1]) == 2  # needs no h5py


@pytest.mark.parametrize("content", [b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(1000)])
def test_a_file_that_only_begins_like_hdf5_is_bad_data(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(content)
    with pytest.raises(BadData, match="not an HDF5 file, or a damaged one"):
        read(tmp_path / "a.h5")


def test_an_unknown_layout_is_nobodys_and_minaris_file_alone_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NoData, match="found HDF5 files of an unknown layout"):
        read(write(tmp_path / "a.h5", {"x": np.zeros(3)}))
    with pytest.raises(BadData, match="the file of a Minari dataset, without its metadata"):
        read(FOREIGN / "minari_hdf5" / "data" / "main_data.hdf5")


def test_a_file_elsewhere_is_copied_and_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", d4rl(100))
    place = open_location("memory://hdf5-test/a.hdf5")
    with place.fs.open(place.path, "wb") as target:
        target.write(path.read_bytes())
    assert read("memory://hdf5-test/a.hdf5")[1].num_steps == 100
    convert(path, "memory://hdf5-test/b.hdf5", to="d4rl")
    assert read("memory://hdf5-test/b.hdf5")[1].num_steps == 100
