"""The small samples of d3rlpy 2.8.1 in this folder, by d3rlpy itself: `python make_d3rlpy.py`; `FILE` as argument: reads it.

Three episodes each: vectors with continuous actions, with discrete ones, and two observations at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from d3rlpy.dataset import Episode, dump, load

HERE = Path(__file__).resolve().parent


def episodes(*, discrete: bool, two: bool) -> list[Episode]:
    rng, found = np.random.default_rng(2), []
    for steps, terminated in ((5, True), (8, False), (3, True)):
        vector = rng.normal(size=(steps, 4)).astype(np.float32)
        obs = (vector, rng.integers(0, 255, (steps, 2, 3, 3)).astype(np.uint8)) if two else vector
        actions = rng.integers(0, 3, (steps, 1)) if discrete else rng.uniform(-1, 1, (steps, 2)).astype(np.float32)
        found.append(Episode(obs, actions, rng.normal(size=(steps, 1)).astype(np.float32), terminated))
    return found


def answers(file: Path) -> list[dict[str, Any]]:
    """The episodes by d3rlpy's reader, as [dtype, values]."""
    with file.open("rb") as opened:
        found = load(Episode, opened)
    names = ("observations", "actions", "rewards")
    return [{"terminated": bool(one.terminated), **{name: plain(getattr(one, name)) for name in names}} for one in found]


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return {"tuple": [plain(part) for part in value]}
    return [str(value.dtype), value.tolist()]


if __name__ == "__main__" and len(sys.argv) > 1:
    print(json.dumps(answers(Path(sys.argv[1]))))
elif __name__ == "__main__":
    for name, options in {"vectors": (False, False), "discrete": (True, False), "two": (False, True)}.items():
        path = HERE / f"d3rlpy_{name}.h5"
        with path.open("w+b") as target:
            dump(episodes(discrete=options[0], two=options[1]), target)
        (HERE / f"d3rlpy_{name}.json").write_text(json.dumps(answers(path)), encoding="utf-8")
