"""Secrets are blanked out of what is kept of a command, and of what errors say."""

from __future__ import annotations

import sys

import pytest

from offline_cli.storage.blanking import blanked, blanked_args, secrets_among, this_command
from offline_cli.storage.locations import open_location


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("https://me:pa55@host/a and ftp://u:p@b", "https://***@host/a and ftp://***@b"),
        ("az://c/D?sv=2024&sig=a%2Fb%3D&se=1", "az://c/D?sv=2024&sig=***&se=1"),
        (
            "https://b.s3/x?X-Amz-Signature=0ff1ce&X-Amz-Security-Token=t0k",
            "https://b.s3/x?X-Amz-Signature=***&X-Amz-Security-Token=***",
        ),
        ("AccountName=lab;AccountKey=a2V5a2V5==;EndpointSuffix=x", "AccountName=lab;AccountKey=***;EndpointSuffix=x"),
        ("BlobEndpoint=https://x;SharedAccessSignature=sv=1&sig=abc", "BlobEndpoint=https://x;SharedAccessSignature=***"),
        ("Invalid bucket in s3://AKID:a/b+c@bucket/x", "Invalid bucket in s3://***@bucket/x"),
        ("https://me:p@55@host/a", "https://***@host/a"),
        ("s3://bucket/sig=1/token=2", "s3://bucket/sig=1/token=2"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
    ],
)
def test_only_what_says_that_it_is_a_secret_is_blanked(text: str, want: str) -> None:
    assert blanked(text) == want


def test_values_of_storage_options_are_blanked_however_they_are_written() -> None:
    given = ("record", "--storage-option", "secret=a=b", "--storage-option=key=c", "--out", "s3://b/D", "--storage-option")
    assert blanked_args(given) == (
        *("record", "--storage-option", "secret=***", "--storage-option=key=***", "--out", "s3://b/D", "--storage-option"),
    )


def test_secrets_are_known_by_the_names_of_their_options() -> None:
    text = "AccountName=lab;AccountKey=a2V5a2V5=="
    given = [
        f"connection_string={text}",
        "secret=SECRET",
        "token=anon",
        "token=key.json",
        "endpoint_url=http://x",
        "profile=lab",
    ]
    assert secrets_among([word for pair in given for word in ("--storage-option", pair)]) == (text, "a2V5a2V5==", "SECRET")


def test_secrets_are_known_within_json_as_clients_get_it() -> None:
    nested = '{"aws_secret_access_key": "NESTED", "region_name": "eu-west-1"}'
    given = ['secret="QUOTED"', f"client_kwargs={nested}", "secret=7", 'client_kwargs=["x"]']
    found = secrets_among([word for pair in given for word in ("--storage-option", pair)])
    assert found == ('"QUOTED"', "NESTED", "QUOTED", "7")


def test_passwords_in_urls_are_secrets_wherever_a_client_repeats_them() -> None:
    found = secrets_among(["inspect", "https://me:pa%2F55@host/a", "s3://AKID:hunter2@bucket"])
    assert set(found) == {"pa%2F55", "pa/55", "hunter2"}


def test_a_program_that_says_nothing_of_its_command_is_known_by_its_arguments_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["program.py", "--storage-option", "secret=SECRET", "https://u:p@host/a b"])
    assert this_command() == "program.py --storage-option 'secret=***' 'https://***@host/a b'"


def test_the_url_that_people_read_has_no_password() -> None:
    pytest.importorskip("aiohttp")
    place = open_location("https://me:pa55@host.invalid/folder")
    assert place.url == "https://***@host.invalid/folder"
    assert place.join("a").url == "https://***@host.invalid/folder/a"
    assert place.path == "https://me:pa55@host.invalid/folder"
