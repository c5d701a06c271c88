"""What training from S3 costs: each row asks the same server, and says so where there is none."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks import s3_server, train_from_s3


def test_without_a_server_every_row_says_so(monkeypatch):
    monkeypatch.delenv("OFFLINE_CLI_RADOSGW", raising=False)
    monkeypatch.setattr(s3_server.importlib.util, "find_spec", lambda name: None)
    rows = train_from_s3.rows()
    assert len(rows) == 3
    assert all(row.not_measured.startswith("no S3 server") for row in rows)


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("moto") is None, reason="moto is not installed")
def test_all_rows_are_measured_and_leave_no_run_behind(tmp_path):
    with s3_server.server() as place:
        rows = train_from_s3.measured(tmp_path, place, steps=5000, epochs=1, pairs=1)
    assert [row.unit for row in rows] == ["runs/s", "MB/s", "MB/s"]
    assert all(row.ours and row.rival and row.ratio for row in rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["D", "warm"]
