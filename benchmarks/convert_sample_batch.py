"""How fast is SampleBatch JSON made into whole episodes? Rival: RLlib's own parser and splitter, in one process.

The lines are a recording's, 20 times over with new ids.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Floor, Missing, Row, against, missing, recording, timed
from offline_cli.columns import Columns
from offline_cli.converting.reading import read_episodes

COPIES, NEXT = 20, 1_000_003  # NEXT: added to the ids for each copy
NAMES = ("sample_batch_cartpole_plain", "sample_batch_cartpole_lz4")
FLOOR = Floor(4, words=">= 4x RLlib")


def rows(small: bool = False) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [of_recording(name, Path(folder), small=small) for name in NAMES]


def of_recording(name: str, folder: Path, *, small: bool) -> Row:
    copies = 1 if small else COPIES
    question, file = f"{name}, {copies} times over, to whole episodes", folder / f"{name}.json"
    try:
        (source,) = recording(name).glob("*.json")
    except Missing as error:
        return missing(question, error, unit="steps/s", floor=FLOOR)
    steps = copied(source, file, copies=copies)
    return against(
        "rllib_sample_batch.py",
        question,
        timed(lambda: sum(batch.num_steps for batch in read_episodes([str(file)])), steps),
        unit="steps/s",
        rival_name="RLlib's parser and splitter, in one process",
        floor=FLOOR,
        pairs=1 if small else 3,
        files=[str(file)],
    )


def copied(source: Path, target: Path, *, copies: int) -> int:
    """`copies` of all lines of the file `source` in the file `target`; gives the steps in it."""
    lines = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    with target.open("w", encoding="utf-8") as out:
        for copy in range(copies):
            for line in lines:
                renamed = {name: with_new_ids(part, copy) for name, part in line["policy_batches"].items()}
                out.write(json.dumps({**line, "policy_batches": renamed}) + "\n")
    return copies * sum(int(line["count"]) for line in lines)


def with_new_ids(part: dict[str, Any], copy: int) -> dict[str, Any]:
    return {**part, Columns.EPS_ID: [id_ + copy * NEXT for id_ in part[Columns.EPS_ID]]}
