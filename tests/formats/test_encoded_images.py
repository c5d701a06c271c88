"""PNG and JPEG bytes in the cells of tables: decoded, bounded before they are, and bad rows like any other."""

from __future__ import annotations

import struct
import sys
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.converting.convert import convert
from offline_cli.datasets.dataset import open_dataset
from offline_cli.errors import BadData, BadMapping, MissingPackage

cv2 = pytest.importorskip("cv2", reason="OpenCV comes with the extra [images]")

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), np.uint8)
MAPPING: dict[str, Any] = {
    "columns": {"eps_id": "ride", "obs": "camera", "actions": "a"},
    "images": {"camera": "rgb"},
}


def encoded(pixels: Any, form: str = ".png") -> bytes:
    shown = pixels[..., [2, 1, 0, 3][: pixels.shape[-1]]] if pixels.ndim == 3 else pixels  # OpenCV's order
    return bytes(cv2.imencode(form, shown)[1])


def png(width: int, height: int, *, bits: int = 8, colour: int = 2, data: bytes = b"") -> bytes:
    """A PNG that declares what it is said to, whatever is in it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    def write(cells: list[bytes | None], column: Any = None, **options: Any) -> Path:
        images = pa.array(cells, pa.binary()) if column is None else column
        columns = {"ride": ["x"] * 3 + ["y"] * (len(cells) - 3), "camera": images, "a": list(range(len(cells)))}
        pq.write_table(pa.table(columns), tmp_path / "t.parquet", **options)
        return tmp_path / "t.parquet"

    return write


def test_png_cells_become_the_pixels_that_they_were_made_of(table: Callable[..., Path], tmp_path: Path) -> None:
    source = table([encoded(one) for one in PIXELS], row_group_size=2)
    result = convert(source, tmp_path / "out", mapping=MAPPING, action_scale="env")
    assert not [kind for kind in result.assumptions if "jpeg" in kind or "alpha" in kind]
    with open_dataset(tmp_path / "out") as dataset:
        space = dataset.manifest.observation_space
        assert (space.shape, space.dtype) == ((5, 4, 3), np.uint8)  # type: ignore[union-attr]
        seen = [episode.get_observations(slice(0, 3)) for episode in dataset]
    np.testing.assert_array_equal(np.concatenate(seen), PIXELS)


def test_jpeg_is_read_as_opencv_reads_it_and_counted_as_lossy(table: Callable[..., Path], tmp_path: Path) -> None:
    cells = [encoded(one, ".jpg") for one in PIXELS]
    result = convert(table(cells), tmp_path / "out", mapping=MAPPING, action_scale="env")
    assert result.assumptions["lossy-jpeg:camera"] == 6
    with open_dataset(tmp_path / "out") as dataset:
        first = dataset[0].get_observations(0)
    np.testing.assert_array_equal(first, cv2.imdecode(np.frombuffer(cells[0], np.uint8), cv2.IMREAD_COLOR_RGB))
    assert (first != PIXELS[0]).any()


def test_a_struct_of_bytes_and_path_is_named_with_a_dot_and_gray_has_no_channels(
    table: Callable[..., Path], tmp_path: Path
) -> None:
    gray = PIXELS[..., 0]
    images = pa.array([{"bytes": encoded(one), "path": "p"} for one in gray])
    mapping = {"columns": {**MAPPING["columns"], "obs": "camera.bytes"}, "images": {"camera.bytes": "gray"}}
    convert(table([b""] * 6, images), tmp_path / "out", mapping=mapping, action_scale="env")
    with open_dataset(tmp_path / "out") as dataset:
        np.testing.assert_array_equal(dataset[0].get_observations(slice(0, 3)), gray[:3])


@pytest.mark.parametrize(
    "cell",
    [
        b"GIF89a" + bytes(40),
        encoded(PIXELS[0])[:-30],
        encoded(PIXELS[0][:4]),
        png(60_000, 60_000),
        png(4, 5, bits=16),
        None,
    ],
    ids=["another form", "cut", "another size", "bomb", "16 bits", "missing"],
)
def test_a_cell_that_is_no_such_image_is_a_bad_row(cell: bytes | None, table: Callable[..., Path], tmp_path: Path) -> None:
    source = table([*(encoded(one) for one in PIXELS[:4]), cell, encoded(PIXELS[5])])
    with pytest.raises(BadData) as caught:
        convert(source, tmp_path / "out", mapping=MAPPING, action_scale="env")
    assert caught.value.where.endswith("t.parquet row 4")
    result = convert(source, tmp_path / "kept", mapping=MAPPING, action_scale="env", on_error="skip")
    assert (result.episodes, result.episodes_lost) == (1, 1)


def test_without_the_package_the_extra_is_named(
    table: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingPackage) as caught:
        convert(table([encoded(one) for one in PIXELS]), tmp_path / "out", mapping=MAPPING, action_scale="env")
    assert (caught.value.exit_code, caught.value.fix) == (6, "pip install 'offline-cli[images]'")


def proposed(path: Path) -> dict[str, Any]:
    """The mapping that is proposed for a table."""
    with pytest.raises(BadMapping) as caught:
        convert(path, path.parent / "never")
    return tomllib.loads(caught.value.details["starting_mapping"])


@pytest.mark.parametrize(
    ("form", "pixels", "kind"),
    [(".png", PIXELS, "rgb"), (".jpg", PIXELS, "rgb"), (".png", PIXELS[..., 0], "gray"), (".jpg", PIXELS[..., 0], "gray")],
)
def test_cells_that_begin_as_png_or_jpeg_are_proposed_as_images(
    form: str, pixels: Any, kind: str, table: Callable[..., Path], tmp_path: Path
) -> None:
    source = table([encoded(one, form) for one in pixels])
    mapping = proposed(source)
    assert mapping["columns"] == {"eps_id": "ride", "obs": "camera", "actions": "a"}
    assert mapping["images"] == {"camera": kind}
    assert convert(source, tmp_path / "out", mapping=mapping).steps == 6
