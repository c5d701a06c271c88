"""`kill -9` of record, convert, filter, merge and split, at storage operations and moments: `--resume` ends undisturbed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from mortal_commands import Life, Zygote

from offline_cli.datasets.dataset import Dataset
from offline_cli.storage.locations import Location, open_location

pytestmark = pytest.mark.integration

OPERATIONS = 6
TRIES, SOONER = 8, 0.8
EPISODES = 24
KILLED = -9


@dataclass(frozen=True)
class Target:
    """Where the dataset goes, and how the killed commands find it."""

    url: str  # of a folder for several datasets
    environment: dict[str, str]
    moments: int  # of kills in one test


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.nightly)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """A folder on disk, and one in a bucket."""
    if request.param == "local":
        return Target(str(tmp_path), {}, 30)
    server = request.getfixturevalue("s3")
    return Target(server.bucket(), dict(server.environment), 12)


@pytest.fixture
def zygote(target: Target, tmp_path: Path) -> Iterator[Zygote]:
    """Runs commands that start in no time, and may be killed."""
    with Zygote(target.environment, tmp_path / "stderr") as process:
        yield process


def record(out: str) -> list[str]:
    words = ["record", "recording_envs:Slow-v0", "--out", out, "--policy", "random", "--episodes", str(EPISODES)]
    words += ["--vectorize", "sync", "--num-envs", "3"]
    return [*words, "--max-rows-per-file", "2", "--device", "cpu", "--json", "--quiet"]


def convert(out: str, source: Path) -> list[str]:
    return ["convert", str(source), "--out", out, "--to", "columns", "--max-rows-per-file", "40", "--json", "--quiet"]


def filter(out: str, source: Path) -> list[str]:
    words = ["filter", str(source), "--out", out, "--where", "length > 0"]
    return [*words, "--max-rows-per-file", "2", "--json", "--quiet"]


def merge(out: str, source: Path) -> list[str]:
    return ["merge", str(source), "--out", out, "--max-rows-per-file", "2", "--json", "--quiet"]


@pytest.fixture(params=["record", "convert", "filter", "merge"])
def command(request: pytest.FixtureRequest, zygote: Zygote, tmp_path: Path) -> Any:
    """A function from an --out to a command line."""
    if request.param == "record":
        return record
    source = tmp_path / "source"
    words = record(str(source))
    words[words.index("recording_envs:Slow-v0")] = "recording_envs:Count-v0"
    assert zygote.run(words).code == 0, zygote.complaints()
    words_of = {"convert": convert, "filter": filter, "merge": merge}[request.param]
    return lambda out: words_of(out, source)


def files(folder: Location) -> dict[str, bytes]:
    found = folder.files() if folder.exists() else []
    return {file.path.removeprefix(folder.path).lstrip("/"): file.read_bytes() for file in found}


def content(folder: Location) -> dict[str, Any]:
    """All of a dataset but for its provenance."""
    found: dict[str, Any] = dict(files(folder))
    found["manifest.json"] = {k: v for k, v in json.loads(found["manifest.json"]).items() if k != "provenance"}
    return found


def whole_shards(folder: Location, want: dict[str, Any]) -> dict[str, bytes]:
    """What is in `data/`: nothing but shards of the undisturbed run `want`, to the last byte, so none that is half."""
    shards = {name: data for name, data in files(folder).items() if name.startswith("data/")}
    assert shards.items() <= want.items(), "a shard that is none of the undisturbed run"
    return shards


def is_committed(folder: Location) -> bool:
    return folder.join("manifest.json").exists() and not folder.join("_writing.json").exists()


def is_being_written(folder: Location) -> bool:
    return folder.join("_writing.json").exists()


def undisturbed(target: Target, zygote: Zygote, command: Any) -> tuple[Life, dict[str, Any]]:
    """A run that nobody kills, and the content that it leaves: every episode once."""
    folder = open_location(f"{target.url}/undisturbed")
    life = zygote.run(command(folder.url))
    assert life.code == 0, zygote.complaints()
    ids = [name for batch in Dataset.open(folder).batches() for name in batch.ids]
    assert len(ids) == len(set(ids)) == EPISODES
    return life, content(folder)


def gone_on_with(zygote: Zygote, words: list[str], folder: Location, want: dict[str, Any]) -> None:
    """Go on until it is done: what was whole stays, and the content is that of the undisturbed run `want`."""
    before = whole_shards(folder, want)
    if not is_committed(folder):
        assert zygote.run([*words, "--resume"]).code == 0, zygote.complaints()
    have = content(folder)
    assert have.items() >= before.items(), "a complete shard is lost"
    assert have == want


def assert_cover_the_writing(shards: list[int], *, of: int) -> None:
    """`shards`: how many were complete at each of the kills between the first and the last word of the writing."""
    assert len(shards) >= of // 3, f"{len(shards)} of the {of} kills were within the writing"
    assert len(set(shards)) >= 3, f"the kills do not cover the writing: so many shards were complete: {shards}"


@pytest.mark.nightly
def test_killed_at_random_moments_it_is_gone_on_with_to_the_same_content(target: Target, zygote: Zygote, command: Any) -> None:
    shards = list[int]()
    for part in range(2):  # a machine that was busy during the undisturbed run alone says little of moments: once more
        shards += killed_at_random_moments(
            replace(target, url=f"{target.url}/{part}"), zygote, command, random.Random(5 + part)
        )
        if len(set(shards)) >= 3:
            break
    assert_cover_the_writing(shards, of=target.moments)


def killed_at_random_moments(target: Target, zygote: Zygote, command: Any, chance: random.Random) -> list[int]:
    """How many shards were complete at each of the kills within the writing; each is gone on with."""
    life, want = undisturbed(target, zygote, command)
    shards = list[int]()
    for number in range(target.moments):
        for again in range(TRIES):  # a run that is over sooner than the first one was cannot be killed so late
            folder = open_location(f"{target.url}/killed-{number}-{again}")
            words = command(folder.url)
            share = (number + chance.random()) / target.moments * SOONER**again  # so that they cover all of the run
            moment = life.moment(share, of_its_operations=number % 2 == 1)  # how long it starts depends on the machine
            if zygote.run(words, moment=moment).code == KILLED:
                break
        else:
            pytest.fail(f"in {TRIES} runs no kill came before the end")
        if is_being_written(folder):
            shards.append(len(whole_shards(folder, want)))
        if number % 3 == 0 and not is_committed(folder):
            zygote.run([*words, "--resume"], moment=life.moment(chance.random()))
        gone_on_with(zygote, words, folder, want)
    print("complete shards at the kills within the writing:", shards)
    return shards


def test_killed_at_storage_operations_from_first_to_last_it_is_gone_on_with_to_the_same_content(
    target: Target, zygote: Zygote, command: Any
) -> None:
    life, want = undisturbed(target, zygote, command)
    operations, shards = len(life.operations), list[int]()
    for number in range(OPERATIONS):
        folder = open_location(f"{target.url}/killed-{number}")
        words = command(folder.url)
        moment = 2 * ((operations - 1) * number // (OPERATIONS - 1)) + number % 2
        assert zygote.run(words, operation=moment).code == KILLED
        if is_being_written(folder):
            shards.append(len(whole_shards(folder, want)))
        gone_on_with(zygote, words, folder, want)
    print(f"{operations} operations; complete shards at the kills within the writing:", shards)
    assert_cover_the_writing(shards, of=OPERATIONS)


def test_an_append_killed_at_any_storage_operation_leaves_the_dataset_and_is_gone_on_with(
    target: Target, zygote: Zygote, tmp_path: Path
) -> None:
    recorded = {}
    for name, seed in (("old", "1"), ("new", "2")):
        recorded[name] = tmp_path / name
        words = [*record(str(recorded[name])), "--seed", seed]
        words[words.index("recording_envs:Slow-v0")] = "recording_envs:Count-v0"
        assert zygote.run(words).code == 0, zygote.complaints()

    def begun(name: str) -> tuple[Location, list[str]]:
        folder = open_location(f"{target.url}/{name}")
        words = convert(folder.url, recorded["old"])
        assert zygote.run(words).code == 0, zygote.complaints()
        words[1] = str(recorded["new"])
        words[words.index("--to") : words.index("--to") + 2] = ["--append"]
        return folder, words

    for name in ("first", "undisturbed"):  # the first one may have modules to compile, which are files too
        folder, words = begun(name)
        before = files(folder)
        life = zygote.run(words)
        assert life.code == 0, zygote.complaints()
    want, operations, shards = content(folder), len(life.operations), list[int]()
    old = {name: data for name, data in before.items() if name.startswith("data/")}
    assert want.items() >= old.items()
    for number in range(OPERATIONS):
        folder, words = begun(f"killed-{number}")
        moment = 2 * ((operations - 1) * number // (OPERATIONS - 1)) + number % 2
        assert zygote.run(words, operation=moment).code == KILLED
        left = whole_shards(folder, want)
        assert left.items() >= old.items(), "a shard of the dataset is not as it was"
        shards.append(len(left) - len(old))
        manifest = json.loads(folder.join("manifest.json").read_bytes())
        is_new = len(manifest["shards"]) > len(old)
        listed = want["manifest.json"] if is_new else json.loads(before["manifest.json"])
        assert manifest["shards"] == listed["shards"]
        if is_being_written(folder) or not is_new:
            assert zygote.run([*words, "--resume"]).code == 0, zygote.complaints()
        assert content(folder) == want
    print(f"{operations} operations; complete new shards at the kills:", shards)
    assert len(set(shards)) >= 3, f"the kills do not cover the writing: so many shards were complete: {shards}"
