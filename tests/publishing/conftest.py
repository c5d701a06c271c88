"""Small batches, and datasets written from them."""

from written_datasets import make_batch, write_dataset, writer_for

__all__ = ["make_batch", "write_dataset", "writer_for"]
