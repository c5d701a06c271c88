"""How fast is SampleBatch JSON made into whole episodes? Rivals: bare parsing of the same lines, and RLlib's own parser.

The lines are a recording's, 20 times over with new ids. Nobody makes episodes of them without parsing them, and decimals take
long to parse. The target is a share of the fastest parser in Python's reach, orjson, which does nothing else, on one core at a
time because what it makes are Python's objects. It is 10 to 22 times as fast as RLlib, so no multiple of RLlib beyond that is
a target.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from benchmarks.floors import Floor, measured_floor
from benchmarks.harness import Missing, Row, missing, paired, paired_rates, timed
from benchmarks.made_data import sample_batches
from benchmarks.recordings import recording
from benchmarks.rival_process import Rival
from benchmarks.targets import NO_TARGET, Target
from offline_cli.converting.reading import read_episodes

COPIES = 20
NAMES = ("sample_batch_cartpole_plain", "sample_batch_cartpole_lz4")
ORJSON, JSON = (
    Target(0.6, words=">= 0.6x orjson.loads of the same lines"),
    Target(0.5, words="<= 2x json.loads of the same lines"),
)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [row for name in NAMES for row in of_recording(name, Path(folder))]


def of_recording(name: str, folder: Path) -> list[Row]:
    question = f"{name}, {COPIES} times over, to whole episodes"
    file = folder / f"{name}.json"
    try:
        (source,) = recording(name).glob("*.json")
    except Missing as error:
        return [missing(question, error, unit="steps/s", target=target) for target in (ORJSON, JSON, NO_TARGET)]
    steps = sample_batches(source, file, copies=COPIES)
    floor = measured_floor("orjson.loads of the same lines", lambda: parsed(file), steps)
    parsers = [against_parser(question, file, steps, floor, *parser) for parser in ((orjson.loads, ORJSON), (json.loads, JSON))]
    return [*parsers, against_rllib(question, file, steps, floor)]


def parsed(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(orjson.loads(line)["count"] for line in lines)


def against_parser(question: str, file: Path, steps: int, floor: Floor, loads: Callable[[bytes], Any], target: Target) -> Row:
    lines = file.read_bytes().splitlines()
    return paired(
        question,
        amount=steps,
        unit="steps/s",
        ours=lambda: read(file),
        rival=lambda: sum(loads(line)["count"] for line in lines),
        rival_name=f"{loads.__module__}.loads of the same lines",
        floor=floor,
        target=target,
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
                pairs=3,
            )
            return replace(row, floor=f"{row.floor}, {at_most(row)}")
    except Missing as error:
        return missing(question, error, unit="steps/s", rival_name="RLlib")


def at_most(row: Row) -> str:
    """What the floor is of the rival, in words."""
    assert row.floor_rate is not None
    assert row.rival is not None
    return f"which alone is {row.floor_rate / row.rival:.0f}x RLlib"


def read(file: Path) -> int:
    return sum(batch.num_steps for batch in read_episodes([str(file)]))
