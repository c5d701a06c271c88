"""HDF5 files.

* `safe.py`: `Hdf5File` opens one by h5py, and checks each object against an allow-list before it reads it.
* `d4rl.py`, `robomimic.py`, `d3rlpy.py`: one layout each, read and written; Minari's is in `formats/minari/`.
* `episodes.py`: the loop over files with a group, or datasets, per episode.
* `our_metadata.py`: spaces, environment, action scale and dtypes, which the layouts have no place for.
* `writing.py`: files that sinks write.
"""
