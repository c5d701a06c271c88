"""How fast is SampleBatch JSON made into whole episodes? Rivals: json.loads of the same lines, and RLlib's own parser.

The lines are a recording's, 20 times over with new ids. Nobody makes episodes of them without parsing them, and decimals take
long to parse. The floor is the rate of the fastest parser in Python's reach, orjson, which does nothing else, on one core at a
time because what it makes are Python's objects. Where that is below a target, the target is out of reach.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import orjson

from benchmarks.floors import Floor, measured_floor
from benchmarks.harness import Missing, Row, missing, paired, paired_rates, timed
from benchmarks.made_data import sample_batches
from benchmarks.recordings import recording
from benchmarks.rival_process import Rival
from benchmarks.targets import Target
from offline_cli.converting.reading import read_episodes

COPIES = 20
NAMES = ("sample_batch_cartpole_plain", "sample_batch_cartpole_lz4")
PARSER, RLLIB = Target(0.5, words="<= 2x json.loads of the same lines"), Target(50, words=">= 50x RLlib")


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [row for name in NAMES for row in of_recording(name, Path(folder))]


def of_recording(name: str, folder: Path) -> list[Row]:
    question = f"{name}, {COPIES} times over, to whole episodes"
    file = folder / f"{name}.json"
    try:
        (source,) = recording(name).glob("*.json")
    except Missing as error:
        return [missing(question, error, unit="steps/s", target=target) for target in (PARSER, RLLIB)]
    steps = sample_batches(source, file, copies=COPIES)
    floor = measured_floor("orjson.loads of the same lines", lambda: parsed(file), steps)
    return [against_parser(question, file, steps, floor), against_rllib(question, file, steps, floor)]


def parsed(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(orjson.loads(line)["count"] for line in lines)


def against_parser(question: str, file: Path, steps: int, floor: Floor) -> Row:
    lines = file.read_text(encoding="utf-8").splitlines()
    return paired(
        question,
        amount=steps,
        unit="steps/s",
        ours=lambda: read(file),
        rival=lambda: sum(json.loads(line)["count"] for line in lines),
        rival_name="json.loads of the same lines",
        floor=floor,
        target=PARSER,
    )


def against_rllib(question: str, file: Path, steps: int, floor: Floor) -> Row:
    try:
        with Rival("rllib_sample_batch.py", "rllib", files=[str(file)]) as rival:
            row = paired_rates(
                question,
                unit="steps/s",
                ours=timed(lambda: read(file), steps),
                rival=rival,
                rival_name=f"RLlib's parser and splitter, in one process ({rival.versions})",
                floor=floor,
                target=RLLIB,
                pairs=3,
            )
            return replace(row, floor=f"{row.floor}, {at_most(row)}")
    except Missing as error:
        return missing(question, error, unit="steps/s", rival_name="RLlib", target=RLLIB)


def at_most(row: Row) -> str:
    """What the floor makes of the target, in words."""
    assert row.floor_rate is not None
    assert row.rival is not None
    return f"which alone is {row.floor_rate / row.rival:.0f}x RLlib"


def read(file: Path) -> int:
    return sum(batch.num_steps for batch in read_episodes([str(file)]))
