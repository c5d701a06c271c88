"""HDF5 files.

* `safe.py`: `Hdf5File` opens one by h5py, and checks each object against an allow-list before it reads it.
* `layouts.py`: which of the known layouts a file has, for `--from auto`.
* `episode_groups.py`: episodes of files with a group, or datasets, per episode, many at a time.
* `our_metadata.py`: spaces, environment and action scale in the files that we write.
* `writing.py`: files that sinks write.

D4RL's layout is read and written by `formats/d4rl/`, robomimic's by `formats/robomimic/`, d3rlpy's by `formats/d3rlpy/`;
Minari's by `formats/minari/`.
"""
