"""Recordings of environments whose episodes are known, and small datasets to train on."""

from recordings import child_env, pipeline_file, read, recorded, run_folder, run_through_pieces, same  # noqa: F401
from small_runs import given, make_batch, no_picture, one_thread, registered, seeds, write_dataset  # noqa: F401
