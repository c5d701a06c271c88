"""Small batches, and datasets written from them."""

from written_datasets import assert_same_batch, format, make_batch, paths_of, write_dataset, writer_for

__all__ = ["assert_same_batch", "format", "make_batch", "paths_of", "write_dataset", "writer_for"]
