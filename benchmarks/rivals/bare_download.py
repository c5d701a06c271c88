"""`bare_download.py URL`: fetch every byte below a folder of S3, eight requests of 8 MiB at once, and keep none of them.

fsspec and s3fs are those that ours uses, as a reader would that knows all sizes and decodes nothing.
"""

from __future__ import annotations

import sys

import fsspec

PART, AT_ONCE = 8 << 20, 8


def main(url: str) -> None:
    client = fsspec.filesystem("s3")
    sizes = {path: about["size"] for path, about in client.find(url, detail=True).items()}
    starts = [(path, start) for path, size in sizes.items() for start in range(0, size, PART)]
    ends = [min(start + PART, sizes[path]) for path, start in starts]
    got = client.cat_ranges([path for path, _ in starts], [start for _, start in starts], ends, batch_size=AT_ONCE)
    assert sum(map(len, got)) == sum(sizes.values()), "not every byte came"


if __name__ == "__main__":
    main(*sys.argv[1:])
