"""Small datasets to train on."""

from fake_trackers import kept  # noqa: F401
from small_runs import given, make_batch, no_picture, one_thread, registered, seeds, write_dataset  # noqa: F401
