"""RLlib's column recordings as fragments, in every layout that a column can have."""

from __future__ import annotations

import base64
import json
import os
import pickle
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.rllib.columns import RllibColumnsSource
from offline_cli.storage.locations import open_location
from offline_cli.tally import OnError, Reject, Rejects, Tally

STEPS = 4
OBS = np.arange(2 * (STEPS + 1), dtype=np.float32).reshape(STEPS + 1, 2)


def pack(value: Any) -> str:
    return base64.b64encode(lz4.frame.compress(pickle.dumps(value))).decode()


def columns(first: int = 0, stop: int = STEPS, *, name: str = "a", end: bool = True, **more: Any) -> dict[str, Any]:
    steps = stop - first
    return {
        "eps_id": [name] * steps,
        "obs": OBS[first:stop].tolist(),
        "new_obs": OBS[first + 1 : stop + 1].tolist(),
        "actions": np.arange(first, stop, dtype=np.int32) % 2,
        "rewards": np.ones(steps),
        "terminateds": np.arange(first, stop) == (STEPS - 1 if end else -1),
        "truncateds": np.zeros(steps, np.bool_),
        **more,
    }


def write(path: Path, data: dict[str, Any] | pa.Table) -> Path:
    pq.write_table(data if isinstance(data, pa.Table) else pa.table(data), path)
    return path


def source(*files: Path) -> RllibColumnsSource:
    return RllibColumnsSource([open_location(file) for file in files], "test")


def fragments(*files: Path, on_error: str = "fail") -> tuple[list[EpisodeBatch], Tally, Rejects]:
    tally, rejects = Tally(), Rejects(OnError(on_error))
    return [one.batch for one in source(*files).fragments(tally, rejects)], tally, rejects


def one(*files: Path) -> EpisodeBatch:
    (batch,) = list(read_episodes([str(file) for file in files]))
    return batch


def tensor_field(name: str, kind: pa.DataType, extension: str, shape: list[int] | int | bytes) -> pa.Field:
    told = shape if isinstance(shape, bytes) else json.dumps(shape)
    return pa.field(name, kind, metadata={"ARROW:extension:name": extension, "ARROW:extension:metadata": told})


LAYOUTS: dict[str, tuple[pa.DataType | pa.Field | None, Any]] = {
    "packed cells": (None, [pack(row) for row in OBS[:STEPS]]),
    "packed cells as large strings": (pa.large_string(), [pack(row) for row in OBS[:STEPS]]),
    "lists": (None, OBS[:STEPS].tolist()),
    "large lists": (pa.large_list(pa.float32()), OBS[:STEPS].tolist()),
    "lists of a fixed size": (pa.list_(pa.float32(), 2), OBS[:STEPS].tolist()),
    "Ray's first tensor type": (
        tensor_field("obs", pa.list_(pa.float32()), "ray.data.arrow_tensor", [2]),
        OBS[:STEPS].tolist(),
    ),
    "Ray's second tensor type": (
        tensor_field("obs", pa.large_list(pa.float32()), "ray.data.arrow_tensor_v2", [2]),
        OBS[:STEPS].tolist(),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_observations_are_read_whatever_their_layout(layout: str, tmp_path: Path) -> None:
    kind, values = LAYOUTS[layout]
    field = kind if isinstance(kind, pa.Field) else pa.field("obs", kind or pa.array(values).type)
    table = pa.table({name: value for name, value in columns().items() if name not in ("obs", "new_obs")})
    table = table.append_column(field, pa.array(values, field.type))
    batch = fragments(write(tmp_path / "a.parquet", table))[0][0]
    np.testing.assert_array_equal(batch.obs[:STEPS], OBS[:STEPS])


@pytest.mark.parametrize(
    ("metadata", "shape"),
    [
        ([2, 3, 2], (2, 3, 2)),
        (pickle.dumps((2, 3, 2)), (2, 3, 2)),  # Ray 2.49 to 2.54
        (b"\x80\x04cos\ngetloadavg\n)R.", (12,)),  # a pickle that calls a function
        (pickle.dumps({"shape": [12]}), (12,)),
    ],
)
def test_tensors_of_higher_rank_get_their_shape_from_the_metadata(
    metadata: list[int] | bytes, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[bool] = []
    monkeypatch.setattr(os, "getloadavg", lambda: called.append(True))
    images = np.arange(STEPS * 12, dtype=np.uint8).reshape(STEPS, *shape)
    field = tensor_field("obs", pa.large_list(pa.uint8()), "ray.data.arrow_tensor_v2", metadata)
    table = pa.table({name: value for name, value in columns().items() if name not in ("obs", "new_obs")})
    table = table.append_column(field, pa.array(images.reshape(STEPS, -1).tolist(), field.type))
    batch = fragments(write(tmp_path / "a.parquet", table))[0][0]
    np.testing.assert_array_equal(batch.obs[:STEPS], images)
    assert not called


def test_tensors_of_varying_shape_are_read_where_all_shapes_are_one_and_refused_by_row_where_not(tmp_path: Path) -> None:
    kind = pa.struct([("data", pa.large_list(pa.float32())), ("shape", pa.list_(pa.int64()))])
    field = tensor_field("obs", kind, "ray.data.arrow_variable_shaped_tensor", 2)
    plain = pa.table({name: value for name, value in columns().items() if name not in ("obs", "new_obs")})
    rows = [{"data": [float(i)] * 6, "shape": [3, 2]} for i in range(STEPS)]
    good = plain.append_column(field, pa.array(rows, kind))
    assert fragments(write(tmp_path / "good.parquet", good))[0][0].obs.shape == (STEPS + 1, 3, 2)
    rows[2]["shape"] = [2, 3]
    bad = plain.append_column(field, pa.array(rows, kind))
    with pytest.raises(BadEpisode) as caught:
        fragments(write(tmp_path / "bad.parquet", bad))
    assert caught.value.where.endswith("bad.parquet row 2")


@pytest.mark.integration
def test_rays_tensor_types_are_read_the_same_once_ray_has_registered_them(tmp_path: Path) -> None:
    tensors = pytest.importorskip("ray.data.extensions", reason="needs the extra [ray]")
    array = tensors.ArrowTensorArray.from_numpy(OBS[:STEPS])
    table = pa.table({name: value for name, value in columns().items() if name not in ("obs", "new_obs")})
    batch = fragments(write(tmp_path / "a.parquet", table.append_column("obs", array)))[0][0]
    np.testing.assert_array_equal(batch.obs[:STEPS], OBS[:STEPS])


def test_an_episode_goes_on_over_files_and_the_joints_are_counted(tmp_path: Path) -> None:
    parts = [write(tmp_path / f"{i}.parquet", columns(i, i + 1)) for i in range(STEPS)]
    batches, tally, _ = fragments(*parts)
    assert [len(batch) for batch in batches] == [1]
    assert tally.fragments_stitched == STEPS - 1
    np.testing.assert_array_equal(batches[0].obs, OBS)


def test_rows_in_any_order_become_episodes_by_their_timesteps(tmp_path: Path) -> None:
    table = pa.table(columns(t=np.arange(STEPS)))
    batch = one(write(tmp_path / "a.parquet", table.take([2, 0, 3, 1])))
    np.testing.assert_array_equal(batch.obs, OBS)
    assert batch.terminated[0]


def test_other_columns_become_extra_outputs_and_those_without_numbers_are_dropped_and_counted(tmp_path: Path) -> None:
    data = columns(
        action_logp=np.full(STEPS, -0.5, np.float32), note=["x"] * STEPS, when=pa.array([1] * STEPS, pa.timestamp("s"))
    )
    stream = read_episodes(str(write(tmp_path / "a.parquet", data)))
    (batch,) = list(stream)
    assert sorted(batch.extra) == ["action_logp", "when"]
    assert batch.extra["when"].tolist() == [1_000_000] * STEPS
    assert stream.tally.assumptions["dropped-column"] == 1


@pytest.mark.parametrize("infos", ["text", "struct"])
def test_infos_belong_to_the_observation_that_the_step_led_to(infos: str, tmp_path: Path) -> None:
    dicts = [{"k": i} for i in range(STEPS)]
    values = [json.dumps(info) for info in dicts] if infos == "text" else dicts
    batch = one(write(tmp_path / "a.parquet", columns(infos=values)))
    assert batch.infos == [{}, *dicts]


def test_a_row_without_a_value_is_refused_by_place(tmp_path: Path) -> None:
    data = columns(rewards=pa.array([1.0, None, 1.0, 1.0]))
    with pytest.raises(BadEpisode) as caught:
        fragments(write(tmp_path / "a.parquet", data))
    assert caught.value.where.endswith("a.parquet row 1")


def test_under_quarantine_bad_rows_are_kept_with_the_rest_of_their_episode_and_the_others_are_read(tmp_path: Path) -> None:
    good = columns(name="good")
    bad = columns(name="bad", obs=[pack(row) for row in OBS[:STEPS]], new_obs=[pack(row) for row in OBS[1:]])
    bad["obs"][3] = "BCJN????"
    good["obs"], good["new_obs"] = [pack(row) for row in OBS[:STEPS]], [pack(row) for row in OBS[1:]]
    both = {name: [*bad[name], *good[name]] for name in good}
    stream = read_episodes(str(write(tmp_path / "a.parquet", both)), on_error="quarantine")
    kept: list[Reject] = []
    stream.set_aside_to(kept.extend)
    assert {name: batch.lengths[e] for batch in stream for e, name in enumerate(batch.ids)} == {"good": STEPS}
    assert stream.rejects.count == STEPS
    assert not stream.tally.assumptions
    assert kept[0].where.endswith("a.parquet row 3, column obs")
    assert b'"eps_id": "bad"' in kept[1].raw


def test_a_final_observation_of_another_type_keeps_its_value(tmp_path: Path) -> None:
    obs, new_obs = pa.array([[0], [1]], pa.list_(pa.int64())), pa.array([[1.0], [2.75]], pa.list_(pa.float64()))
    data = columns(STEPS - 2, STEPS, obs=obs, new_obs=new_obs)
    batch = one(write(tmp_path / "a.parquet", data))
    np.testing.assert_array_equal(batch.obs, [[0.0], [1.0], [2.75]], strict=True)
