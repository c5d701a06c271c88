"""Options as text, and what is kept of a command line."""

from __future__ import annotations

import pytest

from offline_cli.cli.invocation import Invocation
from offline_cli.cli.texts import pairs, storage_options
from offline_cli.errors import UsageError


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    assert pairs(["a=1", "b=x=y"], option="--expect") == {"a": "1", "b": "x=y"}


@pytest.mark.parametrize("given", [["episodes"], ["=3"], ["a=1", "a=2"]])
def test_what_is_no_pair_or_given_twice_is_refused_by_name(given: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        pairs(given, option="--expect")
    assert refused.value.where == "--expect"


def test_storage_options_are_read_as_json_where_they_are_json() -> None:
    given = ["anon=true", "key=AKIA", 'client_kwargs={"endpoint_url": "http://x"}', 'secret="007"']
    assert storage_options(given) == {
        "anon": True,
        "key": "AKIA",
        "client_kwargs": {"endpoint_url": "http://x"},
        "secret": "007",
    }


@pytest.mark.parametrize("given", [None, []])
def test_without_storage_options_there_are_none(given: list[str] | None) -> None:
    assert storage_options(given) is None


def test_what_is_recorded_of_a_command_line_holds_no_secrets() -> None:
    args = ("convert", "s3://me:hush@host/b", "--storage-option", "secret=hush", "--storage-option=key=hush", "--out", "D")
    kept = ("convert", "s3://***@host/b", "--storage-option", "secret=***", "--storage-option=key=***", "--out", "D")
    assert Invocation(args).recorded() == ("offline-cli", *kept)


def test_a_container_in_a_url_is_no_secret() -> None:
    assert "abfs://box@account/path" in Invocation(("inspect", "abfs://box@account/path")).recorded()


def test_flags_after_two_dashes_are_sources_not_flags() -> None:
    assert not Invocation(("inspect", "--", "--json")).as_json
