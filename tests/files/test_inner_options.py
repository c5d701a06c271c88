"""Inner options of storage clients that nobody takes are named, all at once, before any request: exit 4."""

from __future__ import annotations

from typing import Any

import pytest
from offline_cli.files import clients
from offline_cli.files.locations import open_location
from offline_cli.files.providers import Provider
from typer.testing import CliRunner

from offline_cli.cli.app import app
from offline_cli.errors import BadConfig

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("s3://b/x", {"client_kwargs": {"nonsense": 1}}, "nothing takes 'nonsense'; there is .*region_name"),
    ("s3://b/x", {"client_kwargs": {"region": "eu-west-1"}}, "did you mean region_name"),
    ("s3://b/x", {"client_kwargs": {"regoin_name": "eu-west-1"}}, "did you mean region_name"),
    ("s3://b/x", {"client_kwargs": {"config": {}}}, "nothing takes 'config'"),
    ("s3://b/x", {"client_kwargs": {"region_name": 3}}, "region_name is int, not text"),
    ("s3://b/x", {"client_kwargs": {"verify": {"a": 1}}}, "not a truth value"),
    ("s3://b/x", {"client_kwargs": [1]}, "client_kwargs: list, not an object"),
    ("s3://b/x", {"client_kwargs": "x"}, "client_kwargs: str, not an object"),
    ("s3://b/x", {"client_kwargs": {"endpoint_url": "http://a"}, "endpoint_url": "http://b"}, "endpoint_url: given twice"),
    ("s3://b/x", {"config_kwargs": {"nonsense": 1}}, "config_kwargs: nothing takes 'nonsense'"),
    ("gs://b/x", {"session_kwargs": {"nonsense": 1}, "token": "anon"}, "session_kwargs: nothing takes 'nonsense'"),
    ("https://localhost:1/x", {"client_kwargs": {"nonsense": 1}}, "client_kwargs: nothing takes 'nonsense'"),
]


@pytest.mark.parametrize(("url", "options", "what"), WRONG)
def test_inner_options_that_cannot_be_handed_on_are_refused_before_any_request(
    url: str, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(BadConfig, match=what):
        open_location(url, {"anon": True, **options} if url.startswith("s3") else options)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(BadConfig) as caught:
        open_location("s3://b/x", {"anon": True, "client_kwargs": {"a": 1, "b": 2}, "config_kwargs": {"c": 3}})
    assert len(caught.value.details["problems"]) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"client_kwargs": {"region_name": "eu-west-1", "verify": False, "endpoint_url": "http://localhost:1"}},
        {"config_kwargs": {"connect_timeout": 3, "max_pool_connections": 5, "s3": {"addressing_style": "path"}}},
        {"client_kwargs": None},
        {"client_kwargs": {"endpoint_url": "http://localhost:1"}, "endpoint_url": "http://localhost:1"},
    ],
)
def test_those_that_the_library_below_takes_are_handed_on(options: dict[str, Any]) -> None:
    assert open_location("s3://b/x", {"anon": True, **options}).path == "b/x"


def test_values_that_only_the_client_can_judge_are_a_mistake_of_the_options_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "provider_of", lambda scheme: Provider(scheme, (scheme,)))
    options = {"anon": True, "client_kwargs": {"nonsense": "1"}, "skip_instance_cache": True}
    with pytest.raises(BadConfig, match="cannot use what client_kwargs say: TypeError"):
        open_location("s3://b/x", options).exists()


def test_a_command_ends_with_exit_4() -> None:
    done = CliRunner().invoke(app, ["inspect", "s3://b/x", "--storage-option", 'client_kwargs={"nonsense": 1}'])
    assert done.exit_code == 4
    assert "nothing takes 'nonsense'" in done.stderr
