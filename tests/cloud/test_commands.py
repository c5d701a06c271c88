"""Every command against S3, Google Cloud Storage and Azure: the same bytes and numbers as on a local path."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import Cloud, with_gcs

pytestmark = pytest.mark.integration

Told = Callable[..., dict[str, Any]]
SameFolder = Callable[..., None]
RECORD = ("record", "CartPole-v1", "--num-envs", "4", "--vectorize", "sync", "--num-env-runners", "0", "--seed", "3")
RANDOM = (*RECORD, "--policy", "random", "--episodes", "40", "--max-rows-per-file", "300", "--format", "columns")
TRAIN = ("--updates", "12", "--batch-size", "128", "--val-fraction", "0.25", "--device", "cpu", "--seed", "5")
PIPELINE = """
kind = "learner"
[[pieces]]
name = "mean_std_filter"
[[pieces]]
name = "frame_stacking"
num_frames = 2
"""
APPLY = ("--pipeline", "PIPELINE", "--steps-per-batch", "300")
ONE, TWO = "ROOT/tree/a.parquet", "ROOT/tree/deeper/still/b.parquet"
# Commands by what is special about them. ROOT: a local folder, or a bucket; OUT: a folder in it that is not there yet. LOCAL:
# an empty folder of this machine. PIPELINE: a pipeline file of this machine.
CASES: dict[str, tuple[str, ...]] = {
    "record": (*RANDOM, "--out", "OUT"),
    "record, a policy of the bucket": (*RECORD, "--policy", "ROOT/run", "--episodes", "3", "--out", "OUT"),
    "convert": ("convert", "ROOT/recorded", "--out", "OUT"),
    "convert, a glob": ("convert", "ROOT/recorded/data/*.parquet", "--out", "OUT", "--env", "CartPole-v1"),
    "convert, a folder of folders": ("convert", "ROOT/tree", "--out", "OUT", "--env", "CartPole-v1", "--to", "columns"),
    "convert, append": ("convert", "ROOT/more", "--out", "ROOT/recorded", "--append"),
    "merge": ("merge", "ROOT/recorded", "ROOT/more", "ROOT/recorded", "--out", "OUT"),
    "apply": ("apply", "ROOT/recorded", *APPLY, "--out", "OUT"),
    "apply, a glob, dry run": ("apply", "ROOT/tree/**/*.parquet", *APPLY, "--out", "OUT", "--env", "CartPole-v1", "--dry-run"),
    "train-bc": ("train-bc", "ROOT/recorded", "--out", "LOCAL/run", *TRAIN),
    "evaluate": ("evaluate", "ROOT/run", "--env", "CartPole-v1", "--episodes", "5"),
    "inspect": ("inspect", "ROOT/recorded", "--expect", "episodes=40"),
    "validate": ("validate", "ROOT/recorded", "--deep"),
    "repair": ("repair", "ROOT/left"),
}
TIMES = {"seconds", "steps_per_second", "samples_per_second"}


def bare(found: dict[str, Any], root: Path | str, folder: Path) -> Any:
    """What a command told, without times, and with places as CASES names them."""
    text = json.dumps({name: value for name, value in found.items() if name not in TIMES})
    return json.loads(text.replace(str(root), "ROOT").replace(str(folder), "LOCAL"))


@dataclass(frozen=True)
class Here:
    """Runs the commands of CASES, those on local paths once, each in a copy of its own."""

    pristine: Path
    told: Told
    files: Path  # copies, a pipeline file, and what is written to this machine whatever a command is about
    results: dict[str, Any] = field(default_factory=dict)

    def run(self, case: str, root: Path | str, name: str) -> Any:
        """What the command told, run in `root`; `name` is that of its LOCAL."""
        folder = self.files / name / case
        places = {"OUT": f"{root}/out", "ROOT": str(root), "LOCAL": str(folder), "PIPELINE": str(self.files / "pipeline.toml")}
        words = list(CASES[case])
        for word, place in places.items():
            words = [one.replace(word, place) for one in words]
        return bare(self.told(*words), root, folder)

    def root(self, case: str) -> Path:
        """Where it runs on local paths."""
        return self.files / "here" / case / "root"

    def result(self, case: str) -> Any:
        """What it told of local paths."""
        if case not in self.results:
            root = Path(shutil.copytree(self.pristine, self.root(case)))
            self.results[case] = self.run(case, root, "here")
        return self.results[case]


@pytest.fixture(scope="module")
def pristine(told: Told, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset, a run, foreign files in folders, and what a killed writer left."""
    root = tmp_path_factory.mktemp("pristine")
    told(*RANDOM, "--out", root / "recorded")
    told("train-bc", root / "recorded", "--out", root / "run", *TRAIN)
    told(*RECORD, "--policy", "random", "--episodes", "5", "--seed", "40", "--out", root / "more", "--format", "columns")
    shards = sorted((root / "recorded/data").iterdir())
    for shard, name in zip(shards, (ONE, TWO), strict=False):
        target = root / name.removeprefix("ROOT/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shard, target)
    shutil.copytree(root / "recorded", root / "left")
    (root / "left/_part-01234567-manifest.json").write_bytes(b"{half")
    return root


@pytest.fixture(scope="module")
def here(pristine: Path, told: Told, tmp_path_factory: pytest.TempPathFactory) -> Here:
    """The commands on local paths."""
    files = tmp_path_factory.mktemp("files")
    (files / "pipeline.toml").write_text(PIPELINE, encoding="utf-8")
    return Here(pristine, told, files)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine, where an answer takes seconds, adds no note to what commands tell."""
    monkeypatch.setattr("offline_cli.storage.failures.REPORTED", 60.0)


@pytest.fixture
def bucket(cloud: Cloud, pristine: Path) -> str:
    """A bucket with the same in it."""
    url, client = cloud.bucket(), cloud.client()
    for path in sorted(pristine.rglob("*")):
        if path.is_file():
            client.pipe_file(f"{url}/{path.relative_to(pristine).as_posix()}", path.read_bytes())
    return url


WITH_GCS = ("record", "convert", "train-bc", "inspect")


@pytest.mark.parametrize(
    ("case", "cloud"),
    [
        pytest.param(case, scheme, marks=[] if scheme == "s3" or (scheme == "gs" and case in WITH_GCS) else pytest.mark.nightly)
        for case in CASES
        for scheme in ("s3", "gs", "az")
    ],
    indirect=["cloud"],
)
def test_a_command_tells_the_same_and_writes_the_same_bytes_as_on_a_local_path(
    case: str, cloud: Cloud, bucket: str, here: Here, assert_same_folder: SameFolder
) -> None:
    want = here.result(case)
    assert here.run(case, bucket, cloud.scheme) == want
    if "dry run" in case:
        return
    if "OUT" in CASES[case] or case == "repair":
        written = "left" if case == "repair" else "out"
        assert_same_folder(here.root(case) / written, f"{bucket}/{written}", cloud)
    if case.startswith("train-bc"):
        runs = [here.files / name / case / "run" for name in ("here", cloud.scheme)]
        assert (runs[0] / "policy.safetensors").read_bytes() == (runs[1] / "policy.safetensors").read_bytes()


@with_gcs
@pytest.mark.parametrize("case", ["convert", "apply"])
def test_what_is_there_is_replaced_by_overwrite_and_never_without_it(
    case: str,
    cloud: Cloud,
    bucket: str,
    call: Callable[..., tuple[int, dict[str, Any]]],
    told: Told,
    here: Here,
    assert_same_folder: SameFolder,
    tmp_path: Path,
) -> None:
    more = ("--pipeline", here.files / "pipeline.toml") if case == "apply" else ()
    for source, out in ((here.pristine, tmp_path / "out"), (bucket, f"{bucket}/out")):
        command = (case, f"{source}/recorded", "--out", out, *more)
        told(*command, "--limit", "3")
        code, found = call(*command)
        assert (code, found["error"]["code"]) == (2, "output-exists")
        told(*command, "--overwrite")
    assert_same_folder(tmp_path / "out", f"{bucket}/out", cloud, overwritten=True)
