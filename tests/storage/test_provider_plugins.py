"""A storage provider of another package, registered under entry points, is one like ours; and its mistakes are told as its."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shop_server import PLUGIN, ShopServer, shop_server

from offline_cli import convert
from offline_cli.errors import BadConfig, MissingPackage
from offline_cli.storage import providers
from offline_cli.storage.locations import open_location

REPOSITORY = Path(__file__).resolve().parents[2]
Command = Callable[..., dict[str, Any]]
TABLE = "eps_id,t,x,y,a,r,done\n" + "".join(
    f"{e},{t},{e + t}.5,{t}.25,{t % 2},1.0,{int(t == 4)}\n" for e in range(6) for t in range(5)
)
MAPPING = '[columns]\neps_id = "eps_id"\nt = "t"\nobs = ["x", "y"]\nactions = "a"\nrewards = "r"\nterminateds = "done"\n'


@pytest.fixture
def shop() -> Iterator[ShopServer]:
    """The server behind `shop://`."""
    with shop_server() as server:
        yield server


@pytest.fixture
def command(shop: ShopServer) -> Command:
    """A function that runs a command in a process where the package of tests/plugins/shop is installed, and gives its JSON."""

    def run(*arguments: object) -> dict[str, Any]:
        path = os.pathsep.join([str(REPOSITORY), str(PLUGIN)])
        environment = {**os.environ, "PYTHONPATH": path, "SHOP_URL": shop.address}
        words = [sys.executable, "-m", "offline_cli", *map(str, arguments), "--json"]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        return dict(json.loads(done.stdout))

    return run


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A folder with a table, and the mapping beside it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "steps.csv").write_text(TABLE)
    (tmp_path / "mapping.toml").write_text(MAPPING)
    return tmp_path / "in"


@pytest.mark.integration
def test_a_command_reads_from_and_writes_to_the_storage_of_another_package(
    shop: ShopServer, command: Command, table: Path, tmp_path: Path
) -> None:
    shop.take_folder(table, "shelf/in")
    mapping = ("--mapping", tmp_path / "mapping.toml")
    assert command("convert", "shop://shelf/in", "--out", "shop://shelf/out", *mapping).get("episodes") == 6
    assert command("convert", "shop://shelf/out", "--out", tmp_path / "back").get("episodes") == 6
    convert(table, tmp_path / "local", mapping=tmp_path / "mapping.toml")
    local = {path.name: path.read_bytes() for path in (tmp_path / "local" / "data").iterdir()}
    assert {
        name.removeprefix("data/"): data for name, data in shop.below("shelf/out").items() if name.startswith("data/")
    } == local
    assert sorted(name for name in shop.below("shelf/out") if not name.startswith("data/")) == ["README.md", "manifest.json"]
    assert (tmp_path / "back" / "manifest.json").is_file()


@pytest.mark.integration
def test_its_errors_are_told_as_its_record_says(shop: ShopServer, command: Command) -> None:
    shop.closed = True
    failed = command("inspect", "shop://shelf/in")
    assert failed["exit_code"] == 5
    assert "cannot be reached, or is overloaded (come back later)" in failed["error"]["what"]


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered within the test is not known after it."""
    monkeypatch.setattr(providers, "_known", dict(providers._known))


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("code", "error", "what"),
    [
        ("SHOP = 1", BadConfig, "is 1, not a Provider of mall://"),
        (
            "from offline_cli.storage.providers import Provider\nSHOP = Provider('other', ('other',))",
            BadConfig,
            "not a Provider of mall://",
        ),
        ("raise RuntimeError('broken')", MissingPackage, "cannot be imported: RuntimeError"),
    ],
)
def test_a_registered_object_that_is_no_provider_is_refused(
    code: str, error: type[Exception], what: str, install: Callable[..., None]
) -> None:
    install("mall", {"providers": {"mall": "mall_storage:SHOP"}}, mall_storage=code)
    with pytest.raises(error, match=what):
        open_location("mall://shelf/in")


@pytest.mark.usefixtures("forgotten")
def test_no_package_replaces_a_provider_of_ours(install: Callable[..., None]) -> None:
    install("mall", {"providers": {"s3": "mall_storage:SHOP"}}, mall_storage="raise RuntimeError('imported')")
    assert providers.provider_of("s3").set_up.startswith("AWS_")


@pytest.mark.parametrize(
    ("url", "name"), [("/a/path", "file"), ("s3a://b/c", "s3"), ("zip://a::gcs://b/c.zip", "gs"), ("https://host/a", "http")]
)
def test_the_provider_of_a_url_is_the_one_that_it_leads_to(url: str, name: str) -> None:
    assert providers.provider_at(url).name == name
