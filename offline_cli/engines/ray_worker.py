"""What a worker of a Ray cluster runs: a function of one item, whose outcomes become objects of the cluster.

The first object says which worker this is, with its versions. `worker_function` is sent by value, so that a worker that lacks
this package can say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli import __version__
from offline_cli.engines.messages import RESULT, Payload, outcomes, unpacked

__all__ = ["VERSION", "opened", "outcomes_of", "worker_function"]

VERSION: Final = __version__
HEAD: Final = 64  # bytes before the payload, the first of which is its kind


def worker_function() -> Callable[[bytes, bytes, int, Sequence[str]], Iterator[Any]]:
    """Of a packed function, a packed item, how many of its outcomes are left out, and where the command finds modules.

    Those of these folders that a worker has are searched last: on the command's own machine its plug-ins are found.
    """

    def run(function: bytes, item: bytes, skipped: int, path: Sequence[str]) -> Iterator[Any]:
        import importlib
        import json
        import os
        import platform
        import sys

        sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]

        worker = {"pid": os.getpid(), "node": importlib.import_module("ray").util.get_node_ip_address()}
        try:
            from offline_cli.engines import ray_worker
        except ImportError as error:
            yield json.dumps({**worker, "missing": str(error)}).encode()
            return
        versions = {"python": platform.python_version_tuple()[:2], "offline-cli": ray_worker.VERSION}
        yield json.dumps({**worker, "versions": versions}).encode()
        place = f"worker {worker['pid']} on node {worker['node']}"
        yield from ray_worker.outcomes_of(function, item, skipped, place)

    return run


def outcomes_of(function: bytes, item: bytes, skipped: int, place: str) -> Iterator[NDArray[np.uint8]]:
    """The outcomes but the first `skipped`, each with its kind; as arrays, which the cluster does not pickle."""
    found = outcomes(lambda: (unpacked(function), unpacked(item)), place)
    for number, (kind, payload) in enumerate(found):
        if number >= skipped or kind != RESULT:
            array = np.empty(HEAD + len(payload), np.uint8)
            array[0] = kind
            array[HEAD:] = np.frombuffer(payload, np.uint8)
            yield array


def opened(found: NDArray[np.uint8]) -> tuple[int, Payload]:
    """Kind and payload of an outcome."""
    return int(found[0]), found[HEAD:].data
