"""Secrets are blanked out of what is kept of a command, and of what errors say."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_cli.storage.blanking import blanked, blanked_args, looks_secret, secrets_among
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
        ("https://me:pa/55@host/a", "https://***@host/a"),
        ("https://h/x?api_key=abc&page=2#token=def", "https://h/x?api_key=***&page=2#token=***"),
        ("https://maps/api?key=abc", "https://maps/api?key=***"),
        ("zip://a.json::https://me:pa/55@host/a.zip", "zip://a.json::https://***@host/a.zip"),
        ("made with {'password': 'abc', 'gravity': 'x'}", "made with {'password': '***', 'gravity': 'x'}"),
        ('{"n": 1, "api_key": "a\\"b"}', '{"n": 1, "api_key": "***"}'),
    ],
)
def test_only_what_says_that_it_is_a_secret_is_blanked(text: str, want: str) -> None:
    assert blanked(text) == want


def test_secrets_are_known_by_the_names_of_their_options() -> None:
    text = "AccountName=lab;AccountKey=a2V5a2V5=="
    given = [
        f"connection_string={text}",
        "secret=SECRET",
        "application_key=APPLICATION",
        "token=anon",
        "token=key.json",
        "endpoint_url=http://x",
        "profile=lab",
    ]
    assert secrets_among([word for pair in given for word in ("--storage-option", pair)]) == (
        text,
        "APPLICATION",
        "a2V5a2V5==",
        "SECRET",
    )


def test_passwords_in_urls_are_secrets_wherever_a_client_repeats_them() -> None:
    found = secrets_among(["inspect", "https://me:pa%2F55@host/a", "s3://AKID:hunter2@bucket"])
    assert set(found) == {"pa%2F55", "pa/55", "hunter2"}


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (("--db-password", "hunter2"), ("--db-password", "***")),
        (("--api-key=abc", "--seed", "3"), ("--api-key=***", "--seed", "3")),
        (("--set", "auth_token=abc"), ("--set", "auth_token=***")),
        (
            ('{"apiKey": "abc", "n": {"password": 7, "max_tokens": 5}}',),
            ('{"apiKey": "***", "n": {"password": "***", "max_tokens": 5}}',),
        ),
        (("--env-kwargs", '{"gravity": 9, "password": "x"}'), ("--env-kwargs", '{"gravity": 9, "password": "***"}')),
        (("--env-kwargs={oops",), ("--env-kwargs=***",)),
        (("https://host/x?api_key=abc&n=1",), ("https://host/x?api_key=***&n=1",)),
    ],
)
def test_words_of_a_command_are_blanked_by_their_names(given: tuple[str, ...], want: tuple[str, ...]) -> None:
    assert blanked_args(given) == want


SECRET_NAMES = (
    "password",
    "api_key",
    "apiKey",
    "API-KEY",
    "authToken",
    "client_secret",
    "aws_secret_access_key",
    "credentials",
    "sig",
)
PLAIN_NAMES = (
    "max_tokens",
    "key",
    "keys",
    "key_color",
    "gravity",
    "seed",
    "author",
    "sign",
    "render_mode",
    "tokenizer",
    "monkey_key",
)


def test_names_that_say_that_they_are_secret_are_known_and_others_left_alone() -> None:
    assert [name for name in (*SECRET_NAMES, *PLAIN_NAMES) if looks_secret(name)] == list(SECRET_NAMES)


@given(st.sampled_from(SECRET_NAMES), st.text(string.ascii_letters + string.digits + "+-_~", min_size=6), st.integers(0, 4))
def test_no_secret_is_left_in_what_is_kept_or_told(name: str, secret: str, way: int) -> None:
    secret = f"Zq{secret}"
    words = [(f"--{name}", secret), (f"--{name}={secret}",), (f"https://h/x?{name}={secret}",), (f"https://me:a/{secret}@h/x",)]
    args = (*words, (json.dumps({"a": [{name: secret}]}),))[way]
    assert secret not in " ".join(blanked_args(args))
    assert any(secret in known for known in secrets_among(args))


def test_the_url_that_people_read_has_no_password() -> None:
    pytest.importorskip("aiohttp")
    place = open_location("https://me:pa55@host.invalid/folder")
    assert place.url == "https://***@host.invalid/folder"
    assert place.join("a").url == "https://***@host.invalid/folder/a"
    assert place.path == "https://me:pa55@host.invalid/folder"
