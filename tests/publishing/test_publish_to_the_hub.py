"""`publish --to hf://...`, and hf:// as a source: the real client against a Hub on loopback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hub_server import READER, Hub, hub_server

import offline_cli
from offline_cli.datasets.card import MARK

NAME = "me/walker"
URL = f"hf://datasets/{NAME}"
LICENSED = ("--license", "cc-by-4.0")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub without repositories. Its client uploads by HTTP: Xet's servers are elsewhere."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with hub_server() as server:
        yield server


@pytest.fixture
def publish(call: Callable[..., Any], hub: Hub) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs `publish D --to URL ...`."""

    def run(place: Any, *args: Any, to: str = URL, token: str | None = None) -> tuple[int, dict[str, Any]]:
        return call("publish", place, "--to", to, *args, *at(hub, token))

    return run


def at(hub: Hub, token: str | None = None) -> list[str]:
    """The options with which a command finds the Hub."""
    options = {**hub.options, **({} if token is None else {"token": token})}
    return [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]


@pytest.fixture
def dataset(tmp_path: Path, make_batch: Any) -> Path:
    """A dataset of three shards."""
    return written(tmp_path / "D", make_batch((4, 2, 6)))


def written(place: Path, batch: Any, **options: Any) -> Path:
    about = {"observation_space": batch.observation_space, "action_space": batch.action_space, "action_scale": "env"}
    with offline_cli.DatasetWriter(str(place), max_rows_per_file=1, **about, **options) as writer:
        writer.write(batch)
        writer.commit()
    return place


def test_a_dataset_is_published_in_one_commit_and_read_again(publish: Any, hub: Hub, dataset: Path, tmp_path: Path) -> None:
    code, told = publish(dataset, *LICENSED)

    assert code == 0, told
    repository = hub.repositories[NAME]
    assert len(repository.titles) == 2  # the one of a new repository, and ours
    assert told["to"] == f"{URL}@{repository.refs['main']}"
    shards = {f"data/{file.name}": file.read_bytes() for file in (dataset / "data").iterdir()}
    assert {path: data for path, data in repository.files.items() if path.startswith("data/")} == shards
    assert repository.files["manifest.json"] == (dataset / "manifest.json").read_bytes()
    assert (told["shards"], told["new_shards"], told["private"], told["notes"]) == (3, 3, False, [])
    copy = offline_cli.open_dataset(URL, hub.options)
    assert [one.id_ for one in copy] == [one.id_ for one in offline_cli.open_dataset(dataset)]


def test_a_new_repository_is_private_where_that_is_asked_for(publish: Any, hub: Hub, dataset: Path) -> None:
    assert publish(dataset, *LICENSED, "--private")[1]["private"] is True
    assert hub.repositories[NAME].private


def test_a_public_repository_is_not_published_to_as_private(publish: Any, hub: Hub, dataset: Path) -> None:
    before = hub.make(NAME).files

    code, told = publish(dataset, *LICENSED, "--private")

    assert (code, told["error"]["code"]) == (2, "usage-error")
    assert hub.repositories[NAME].files == before


def test_without_a_licence_nothing_is_sent(publish: Any, hub: Hub, dataset: Path) -> None:
    code, told = publish(dataset)

    assert (code, told["error"]["where"]) == (2, "--license")
    assert "--license" in told["error"]["fix"]
    assert not hub.requests


def test_the_card_names_licence_data_files_and_repository(publish: Any, hub: Hub, dataset: Path) -> None:
    yaml = pytest.importorskip("yaml")  # the client needs it
    publish(dataset, "--license", "CC-BY-4.0")

    card = hub.repositories[NAME].files["README.md"].decode()
    header = yaml.safe_load(card.split("---\n")[1])
    assert header["license"] == "cc-by-4.0"
    assert header["pretty_name"] == "walker"
    assert header["configs"] == [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}]
    assert f'load_dataset("{NAME}"' in card
    assert f'open_dataset("{URL}")' in card


def test_a_card_of_the_user_is_published_with_the_licence_in_its_header(publish: Any, hub: Hub, dataset: Path) -> None:
    (dataset / "README.md").write_text("---\nlicense: mit\n---\nMy walks.\n")

    assert publish(dataset, "--license", "cc-by-4.0")[0] == 2
    code, told = publish(dataset)

    assert (code, told["license"]) == (0, "mit")
    assert hub.repositories[NAME].files["README.md"] == b"---\nlicense: mit\n---\nMy walks.\n"


def test_a_card_of_the_user_without_licence_is_an_error(publish: Any, dataset: Path) -> None:
    (dataset / "README.md").write_text("My walks. license: mit\n")

    code, told = publish(dataset)

    assert (code, told["error"]["where"]) == (2, str(dataset / "README.md"))


def test_a_card_that_was_written_on_the_hub_stays(publish: Any, hub: Hub, dataset: Path) -> None:
    hub.make(NAME, {"README.md": b"---\nlicense: mit\n---\n# What this is\n"})

    code, told = publish(dataset, *LICENSED)

    assert code == 0
    assert told["notes"]
    assert hub.repositories[NAME].files["README.md"].endswith(b"# What this is\n")


def test_the_card_of_a_new_repository_is_replaced(publish: Any, hub: Hub, dataset: Path) -> None:
    hub.make(NAME, {"README.md": b"---\nlicense: mit\n---\n"})

    assert publish(dataset, *LICENSED)[0] == 0
    assert MARK.encode() in hub.repositories[NAME].files["README.md"]


def test_a_licence_that_the_hub_does_not_know_is_exit_4_and_commits_nothing(publish: Any, hub: Hub, dataset: Path) -> None:
    code, told = publish(dataset, "--license", "not-a-license")

    assert (code, told["error"]["code"], told["error"]["where"]) == (4, "bad-config", f"{URL}/README.md")
    assert "manifest.json" not in hub.repositories[NAME].files


def test_a_dry_run_changes_nothing(publish: Any, hub: Hub, dataset: Path) -> None:
    code, told = publish(dataset, *LICENSED, "--dry-run")

    assert (code, told["new_shards"], told["to"]) == (0, 3, URL)
    assert not hub.repositories
    assert {one.split()[0] for one in hub.requests} == {"GET"}


def test_a_broken_upload_continues_with_what_is_missing(publish: Any, hub: Hub, dataset: Path) -> None:
    hub.uploads_left = 1
    code, told = publish(dataset, *LICENSED)
    assert (code, told["error"]["code"]) == (5, "storage-error")
    assert "manifest.json" not in hub.repositories[NAME].files
    assert len(hub.objects) == 1
    hub.uploads_left = None
    hub.requests.clear()

    assert publish(dataset, *LICENSED)[0] == 0

    assert len(hub.asked("PUT", "/objects/")) == 2
    assert len(hub.repositories[NAME].titles) == 2


def test_publishing_again_sends_nothing_and_commits_nothing(publish: Any, hub: Hub, dataset: Path) -> None:
    first = publish(dataset, *LICENSED)[1]
    hub.requests.clear()

    code, told = publish(dataset, *LICENSED)

    assert (code, told["to"], told["new_shards"]) == (0, first["to"], 0)
    assert not hub.asked("PUT", "/objects/")
    assert not hub.asked("POST", "/commit/")


def test_a_dataset_that_was_appended_to_sends_its_new_shards(
    publish: Any, call: Any, hub: Hub, dataset: Path, tmp_path: Path, make_batch: Any
) -> None:
    publish(dataset, *LICENSED)
    more = written(tmp_path / "more", make_batch((3, 3), seed=5, first_id=10))
    code, told = call("convert", more, "--out", dataset, "--append")
    assert code == 0, told

    code, told = publish(dataset, *LICENSED)

    assert (code, told["new_shards"], told["shards"]) == (0, 1, 4)
    assert len(offline_cli.open_dataset(URL, hub.options)) == 5


def test_another_dataset_is_replaced_only_with_overwrite(
    publish: Any, hub: Hub, dataset: Path, tmp_path: Path, make_batch: Any
) -> None:
    publish(written(tmp_path / "older", make_batch((3, 3), seed=5), compression="snappy"), *LICENSED)
    repository = hub.repositories[NAME]
    repository.commit({**repository.files, "picture.png": b"..."}, "a picture")
    before = repository.files

    code, told = publish(dataset, *LICENSED)
    assert (code, told["error"]["code"], told["error"]["where"]) == (2, "output-exists", URL)
    assert repository.files == before

    code, told = publish(dataset, *LICENSED, "--overwrite")
    assert code == 0, told
    shards = {f"data/{file.name}" for file in (dataset / "data").iterdir()}
    assert {path for path in repository.files if path.startswith("data/")} == shards
    assert "picture.png" in repository.files


@pytest.mark.parametrize("path", ["train.csv", "data/train-00000.parquet"])
def test_files_of_others_are_never_replaced(publish: Any, hub: Hub, dataset: Path, path: str) -> None:
    before = hub.make(NAME, {path: b"..."}).files

    code, told = publish(dataset, *LICENSED)

    assert (code, told["error"]["code"]) == (2, "output-exists")
    assert publish(dataset, *LICENSED, "--overwrite")[0] == (2 if path.startswith("data/") else 0)
    assert hub.repositories[NAME].files[path] == before[path]


def test_a_commit_of_somebody_else_meanwhile_is_not_built_upon(
    publish: Any, hub: Hub, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import HfApi

    repository, upload = hub.make(NAME), HfApi.preupload_lfs_files

    def slow(*args: Any, **given: Any) -> None:
        upload(*args, **given)
        if len(repository.titles) == 1:
            repository.commit({**repository.files, "data/theirs.parquet": b"..."}, "theirs")

    monkeypatch.setattr(HfApi, "preupload_lfs_files", slow)

    code, told = publish(dataset, *LICENSED)

    assert (code, told["error"]["code"]) == (5, "locked")
    assert repository.titles[-1] == "theirs"


@pytest.mark.parametrize("token", ["hf_wrong", READER])
@pytest.mark.parametrize("dry", [True, False])
def test_a_wrong_token_is_exit_5_with_how_credentials_are_given(
    publish: Any, hub: Hub, dataset: Path, token: str, dry: bool
) -> None:
    code, told = publish(dataset, *LICENSED, *(["--dry-run"] if dry else []), token=token)

    assert (code, told["error"]["code"], told["error"]["where"]) == (5, "storage-error", URL)
    assert "HF_TOKEN" in told["error"]["fix"]
    assert token not in json.dumps(told)
    assert not hub.objects


def test_no_network_is_exit_5(call: Any, dataset: Path) -> None:
    code, told = call("publish", dataset, "--to", URL, *LICENSED, "--storage-option", "endpoint=http://127.0.0.1:9")

    assert (code, told["error"]["code"], told["error"]["where"]) == (5, "storage-error", URL)


def test_a_shard_that_is_not_the_manifests_is_not_published(publish: Any, hub: Hub, dataset: Path) -> None:
    shard = next((dataset / "data").iterdir())
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)

    code, told = publish(dataset, *LICENSED)

    assert (code, told["error"]["code"], told["error"]["where"]) == (3, "bad-data", str(shard))
    assert "manifest.json" not in hub.repositories[NAME].files


@pytest.mark.parametrize(
    "to",
    [
        *("hf://me/walker", "hf://datasets/walker", "hf://datasets/me/walker@v1", "hf://datasets/me/walker/data", "hf://"),
        "hf://datasets/hidden:word@me/walker",
    ],
)
def test_other_places_of_the_hub_are_refused(publish: Any, hub: Hub, dataset: Path, to: str) -> None:
    code, told = publish(dataset, *LICENSED, to=to)

    assert (code, told["error"]["code"]) == (2, "usage-error")
    assert not hub.requests
    assert not any(secret in json.dumps(told) for secret in ("hidden", "word"))


def test_an_unknown_storage_option_is_refused(publish: Any, hub: Hub, dataset: Path) -> None:
    code, told = publish(dataset, *LICENSED, "--storage-option", "tokn=secret")

    assert (code, told["error"]["code"], told["error"]["where"]) == (2, "usage-error", URL)
    assert not hub.requests


# ---- as a source ----


def test_a_revision_is_read_as_it_was_and_its_commit_is_in_the_provenance(
    publish: Any, call: Any, hub: Hub, dataset: Path, tmp_path: Path, make_batch: Any
) -> None:
    publish(dataset, *LICENSED)
    repository = hub.repositories[NAME]
    first = repository.refs["v1"] = repository.refs["main"]
    other = written(tmp_path / "other", make_batch((3, 3), seed=5), compression="snappy")
    publish(other, *LICENSED, "--overwrite")

    code, told = call("convert", f"{URL}@v1", "--out", tmp_path / "copy", *at(hub))

    assert (code, told["steps"]) == (0, 12)
    manifest = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    assert manifest["provenance"]["sources"] == [f"{URL}@{first}"]
    assert call("inspect", URL, *at(hub))[1]["steps"] == 6


def test_files_within_a_repository_are_a_source(publish: Any, call: Any, hub: Hub, dataset: Path) -> None:
    publish(dataset, *LICENSED)

    code, told = call("inspect", f"{URL}/data/*.parquet", *at(hub))

    assert (code, told["episodes"]) == (0, 3)


def test_a_dataset_of_lerobot_is_a_source(call: Any, hub: Hub, tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parents[1] / "testdata" / "lerobot" / "v30"
    files = {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}
    sha = hub.make("lerobot/arm", files).refs["main"]

    code, told = call("convert", "hf://datasets/lerobot/arm", "--out", tmp_path / "D", *at(hub))

    assert (code, told["episodes"], told["steps"]) == (0, 3, 12), told
    assert offline_cli.open_dataset(tmp_path / "D").manifest.provenance["sources"] == [f"hf://datasets/lerobot/arm@{sha}"]


def test_a_table_is_a_source_with_a_mapping_of_this_machine(call: Any, hub: Hub, tmp_path: Path) -> None:
    rows = "".join(f"{ride},{step},{step / 2},{step % 2},1.0\n" for ride in range(3) for step in range(4))
    hub.make("me/rides", {"rides.csv": f"ride,step,x,a,r\n{rows}".encode()})
    mapping = '[columns]\neps_id = "ride"\nt = "step"\nobs = ["x"]\nactions = "a"\nrewards = "r"\n'
    (tmp_path / "m.toml").write_text(mapping)

    code, told = call("inspect", "hf://datasets/me/rides", "--mapping", tmp_path / "m.toml", *at(hub))

    assert (code, told["episodes"], told["steps"]) == (0, 3, 12)


def test_a_copy_is_compared_with_its_original(publish: Any, call: Any, hub: Hub, dataset: Path) -> None:
    publish(dataset, *LICENSED)

    code, told = call("diff", URL, dataset, *at(hub))

    assert (code, told["equal"]) == (0, True)


@pytest.mark.parametrize("in_memory", [0, 1 << 20], ids=["streamed", "in memory"])
def test_a_dataset_of_the_hub_is_published_too(
    publish: Any, hub: Hub, dataset: Path, in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.publishing.hub.IN_MEMORY", in_memory)
    publish(dataset, *LICENSED)

    code, told = publish(URL, *LICENSED, to="hf://datasets/me/copy")

    assert code == 0, told
    assert hub.repositories["me/copy"].files["manifest.json"] == (dataset / "manifest.json").read_bytes()


@pytest.mark.parametrize("tail", ["", "@v9", "/nothing"])
def test_what_is_not_there_is_exit_5_with_how_a_private_one_is_seen(
    call: Any, publish: Any, hub: Hub, dataset: Path, tail: str
) -> None:
    if tail:
        publish(dataset, *LICENSED)

    code, told = call("inspect", f"{URL}{tail}", *at(hub))

    assert (code, told["error"]["code"]) == (5, "storage-not-found")
    assert "HF_TOKEN" in told["error"]["fix"]


@pytest.mark.parametrize("args", [["convert"], ["filter", "--where", "length > 2"]])
def test_commands_that_write_refuse_the_hub(call: Any, hub: Hub, dataset: Path, args: list[str]) -> None:
    code, told = call(*args, dataset, "--out", URL, *at(hub))

    assert (code, told["error"]["code"]) == (2, "usage-error")
    assert "publish" in told["error"]["fix"]
    assert not hub.repositories


def test_a_published_dataset_may_be_handed_over_as_an_object(hub: Hub, dataset: Path) -> None:
    found = offline_cli.open_dataset(dataset)

    told = offline_cli.publish(replace(found), URL, license="mit", storage_options=hub.options)

    assert told.episodes == 3
    shutil.rmtree(dataset)
    assert len(offline_cli.open_dataset(URL, hub.options)) == 3
