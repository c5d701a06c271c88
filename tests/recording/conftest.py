"""Recordings of environments whose episodes are known."""

from recordings import child_env, pipeline_file, read, recorded, run_folder, run_through_pieces, same  # noqa: F401
