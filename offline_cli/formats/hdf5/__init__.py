"""HDF5 files: read by a child process with limits, because libhdf5 is C code that others' bytes can crash.

* `child_process.py`: what runs in the child: opens one file, lists groups, reads rows of datasets.
* `objects.py`: what of a file is read there: neither what leads out of it (links, external storage, virtual datasets), nor
  filters that are loaded, nor types that are no numbers or texts.
* `messages.py`: what the two processes send each other.
* `plain_file.py`, with `plain_objects.py` and `plain_messages.py`: small groups in the form that h5py gives them, which are
  read without libhdf5 and without the child.
* `plain_alike.py`: many such groups of one form, read at once.
* `files.py`: `Hdf5File`, the parent's side: starts the child, asks, and checks what it answers.
* `nodes.py`: what is told of an object.
* `layouts.py`: which of the known layouts a file has, for `--from auto`.
* `episode_groups.py`: episodes of files with a group, or datasets, per episode, many at a time.
* `writing.py`: files that sinks write.

D4RL's layout is read and written by `d4rl.py`, robomimic's by `robomimic.py`, d3rlpy's by `d3rlpy.py`; Minari's by
`formats/minari/`.
"""
