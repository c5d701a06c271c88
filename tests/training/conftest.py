"""Small datasets to train on, and a small network."""

from pathlib import Path

import pytest
from fake_trackers import kept  # noqa: F401
from small_runs import given, make_batch, no_picture, one_thread, registered, seeds, write_dataset  # noqa: F401


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A small network, many checkpoints, and row and check intervals that do not divide each other."""
    text = "hidden = [16]\nbatch_size = 32\nlr = 0.01\nlog_every = 7\ncheckpoint_every = 10\n"
    (tmp_path / "c.toml").write_text(text)
    return tmp_path / "c.toml"
