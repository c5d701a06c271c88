"""How a rival's script answers: one line of JSON when it is warm, one for each line it is sent; standard library alone.

The answers go to standard output, so whatever a rival prints there is sent to standard error instead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

__all__ = ["serve"]


def serve(prepare: Callable[..., Callable[[], float]], *packages: str, warm_ups: int = 1) -> None:
    """Call `prepare` with the arguments given on the command line, as JSON; it gives the work, which returns its amount."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        run = prepare(**json.loads(sys.argv[1]))
        for _ in range(warm_ups):
            run()
        _say(answers, versions=", ".join(f"{name} {version(name)}" for name in packages))
        for _ in sys.stdin:
            start = time.perf_counter()
            amount = run()
            _say(answers, seconds=time.perf_counter() - start, amount=amount)


def _say(answers: Any, **what: Any) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()
