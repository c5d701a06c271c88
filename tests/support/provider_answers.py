"""What providers answer where something is wrong, and what we should say of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from answering import answering, s3_error


@dataclass(frozen=True)
class Answer:
    """What a provider says, and what we should."""

    scheme: str
    status: int
    code: str
    message: str
    what: str
    fix: str
    more: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.scheme}-{self.status}-{self.code}"

    @property
    def body(self) -> str:
        if self.scheme == "s3":
            return s3_error(self.code, self.message, **dict(self.more))
        if self.scheme == "gs":
            return json.dumps({"error": {"code": self.status, "message": self.message}})
        rest = "".join(f"<{name}>{value}</{name}>" for name, value in self.more)
        told = f"<Code>{self.code}</Code><Message>{self.message}</Message>{rest}"
        return f'<?xml version="1.0" encoding="utf-8"?><Error>{told}</Error>'

    @contextmanager
    def given(self) -> Iterator[int]:
        """Within it, a port of loopback that answers every request so."""
        headers = {"Content_Type": "application/json" if self.scheme == "gs" else "application/xml"}
        headers |= {"x_ms_error_code": self.code} if self.scheme == "az" else {}
        with answering(self.status, self.body, **headers) as port:
            yield port


ANSWERS = [
    Answer("s3", 403, "InvalidAccessKeyId", "The key Id does not exist in our records.", "access was denied", "credentials"),
    Answer("s3", 403, "SignatureDoesNotMatch", "The signature does not match.", "access was denied", "credentials"),
    Answer("s3", 400, "ExpiredToken", "The provided token has expired.", "token has expired", "credentials"),
    Answer("s3", 403, "AccessDenied", "Access Denied", "access was denied", "permissions"),
    Answer("gs", 401, "", "Anonymous caller does not have storage.objects.get access", "access was denied", "GOOGLE_APPL"),
    Answer("gs", 403, "", "me@x.iam does not have storage.objects.list access", "failed", "GOOGLE_APPL"),
    Answer("az", 403, "AuthenticationFailed", "Server failed to authenticate the request.", "access was denied", "AZURE_"),
    Answer("az", 401, "NoAuthenticationInformation", "Server failed to authenticate.", "access was denied", "AZURE_"),
]
MISSING = [
    Answer("s3", 404, "NoSuchBucket", "The specified bucket does not exist", "the bucket 'bucket' does not exist", ""),
    Answer("gs", 404, "", "The specified bucket does not exist.", "the bucket 'bucket' does not exist", ""),
    Answer("az", 404, "ContainerNotFound", "The container does not exist.", "the container 'bucket' does not exist", ""),
]
