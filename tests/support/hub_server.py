"""A Hugging Face Hub of dataset repositories on loopback, in this process: the endpoints that `huggingface_hub` asks.

Commits are whole trees in memory, large files are objects by their SHA-256, and a pushed object stays although no commit
lists it yet, as on the Hub. Every request is noted, so that a test can say what was sent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_loopbacktoken"
READER = "hf_readertoken"  # may look, may not write
LARGE = re.compile(r".*\.parquet")  # as .gitattributes of the Hub has it


@dataclass
class Repository:
    """One dataset repository."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # sha -> path -> content
    refs: dict[str, str] = field(default_factory=dict)  # branch or tag -> sha
    titles: list[str] = field(default_factory=list)  # of the commits that were pushed

    def commit(self, files: Mapping[str, bytes], title: str, branch: str = "main") -> str:
        """A commit with exactly `files`; its sha."""
        tree = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
        sha = hashlib.sha1(json.dumps([title, len(self.commits), tree]).encode()).hexdigest()
        self.commits[sha], self.refs[branch] = dict(files), sha
        self.titles.append(title)
        return sha

    @property
    def files(self) -> dict[str, bytes]:
        """What main holds."""
        return self.commits[self.refs["main"]]


@dataclass
class Hub:
    """The server's state."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # large files, by SHA-256
    requests: list[str] = field(default_factory=list)  # "METHOD /path"
    slow: float = 0.0  # seconds before an upload but the first is taken
    uploads_left: int | None = None  # after so many uploads each further one is refused; None: none is

    @property
    def options(self) -> dict[str, str]:
        """Storage options with which clients find it."""
        return {"endpoint": self.url, "token": TOKEN}

    def make(self, name: str, files: Mapping[str, bytes] | None = None, *, private: bool = False) -> Repository:
        """A repository as the Hub begins one, with `files` besides."""
        made = self.repositories[name] = Repository(private)
        made.commit({".gitattributes": b"*.parquet filter=lfs diff=lfs merge=lfs -text\n", **(files or {})}, "initial commit")
        return made

    def asked(self, method: str, part: str) -> list[str]:
        """The requests of a method whose path holds `part`."""
        return [one for one in self.requests if one.startswith(f"{method} ") and part in one]


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@contextmanager
def hub_server() -> Iterator[Hub]:
    """A Hub on loopback, without any repository."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        body = self._body()
        self.hub.requests.append(f"{self.command} {unquote(parts.path)}")
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            for pattern, method in ROUTES:
                match = re.fullmatch(pattern, f"{self.command} {parts.path}")
                if match:
                    self._check_token()
                    getattr(self, method)(body, **{name: unquote(value or "") for name, value in match.groupdict().items()})
                    return
            raise Refused(404, "RepoNotFound", "Repository not found")
        except Refused as refused:
            headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
            self._send(refused.status, json.dumps({"error": refused.message}).encode(), headers)

    do_GET = do_HEAD = do_POST = do_PUT = _answer  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, document: Any, headers: Mapping[str, str] | None = None) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})})

    # ---- who asks, for what ----

    @property
    def _token(self) -> str | None:
        said = self.headers.get("Authorization")
        return None if said is None else said.removeprefix("Bearer ")

    def _check_token(self) -> None:
        if self._token not in (None, TOKEN, READER):
            raise Refused(401, "", "Invalid credentials in Authorization header")

    def _check_writer(self) -> None:
        if self._token is None:
            raise Refused(401, "", "Invalid username or password.")
        if self._token != TOKEN:
            raise Refused(403, "", "You don't have the rights to write here")

    def _repository(self, name: str) -> Repository:
        found = self.hub.repositories.get(name)
        if found is None or (found.private and self._token is None):
            if self._token is None:
                raise Refused(401, "", "Invalid username or password.")
            raise Refused(404, "RepoNotFound", "Repository not found")
        return found

    def _tree(self, name: str, revision: str) -> tuple[Repository, str, dict[str, bytes]]:
        found = self._repository(name)
        sha = found.refs.get(revision, revision)
        if sha not in found.commits:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found, sha, found.commits[sha]

    # ---- questions ----

    def info(self, _: bytes, name: str, revision: str = "") -> None:
        found, sha, tree = self._tree(name, revision or "main")
        siblings = [{"rfilename": path} for path in sorted(tree)]
        about = {"_id": "0", "author": name.partition("/")[0], "gated": False, "disabled": False, "tags": [], "downloads": 0}
        self._json({"id": name, "sha": sha, "private": found.private, "siblings": siblings, "likes": 0, **about})

    def whoami(self, _: bytes) -> None:
        self._check_writer()
        self._json({"name": "me", "type": "user"})

    def tree(self, _: bytes, name: str, revision: str, path: str = "") -> None:
        files = self._tree(name, revision)[2]
        inside = f"{path}/" if path else ""
        below = {one: data for one, data in sorted(files.items()) if one.startswith(inside)}
        if path and not below:
            raise Refused(404, "EntryNotFound", f"{path} does not exist")
        folders = {"/".join(one.split("/")[:depth]) for one in below for depth in range(1, one.count("/") + 1)}
        folders = {one for one in folders if one.startswith(inside) and one != path}
        is_near = lambda one: self.query.get("recursive") == "true" or "/" not in one[len(inside) :]  # noqa: E731
        listed = [{"type": "directory", "path": one, "oid": "0" * 40, "size": 0} for one in sorted(folders) if is_near(one)]
        self._json([*listed, *(_entry(one, data) for one, data in below.items() if is_near(one))])

    def paths(self, body: bytes, name: str, revision: str) -> None:
        files = self._tree(name, revision)[2]
        asked = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode())["paths"]
        self._json([_entry(one, files[one]) for one in asked if one in files])

    def refs(self, _: bytes, name: str) -> None:
        found = self._repository(name)
        self._json({"branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": found.refs["main"]}], "tags": []})

    def resolve(self, _: bytes, name: str, revision: str, path: str) -> None:
        _found, sha, files = self._tree(name, revision)
        if path not in files:
            raise Refused(404, "EntryNotFound", f"{path} does not exist")
        data = files[path]
        headers = {"X-Repo-Commit": sha, "ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            if first >= len(data):
                raise Refused(416)
            self._send(206, data[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"})
            return
        self._send(200, data, headers)

    # ---- changes ----

    def create(self, body: bytes) -> None:
        self._check_writer()
        told = json.loads(body)
        name = f"{told['organization']}/{told['name']}"
        if told.get("type") != "dataset":
            raise Refused(400, "", "only datasets are kept here")
        if name in self.hub.repositories:
            raise Refused(409, "", "You already created this dataset repo")
        self.hub.make(name, private=told.get("visibility") == "private" or told.get("private") is True)
        self._json({"url": f"{self.hub.url}/datasets/{name}"})

    def validate_yaml(self, body: bytes) -> None:
        head = re.match(r"---\n(.*?)\n---\n", json.loads(body)["content"], re.DOTALL)
        if head is None or "license: not-a-license" in head[1]:
            self._send(400, json.dumps({"errors": [{"message": '"license" must be one of ...'}], "warnings": []}).encode())
            return
        self._json({"errors": [], "warnings": []})

    def preupload(self, body: bytes, name: str, revision: str) -> None:
        self._check_writer()
        files, modes = self._tree(name, revision)[2], {True: "lfs", False: "regular"}
        told = ((one["path"], files.get(one["path"])) for one in json.loads(body)["files"])
        answers = [
            {"path": path, "uploadMode": modes[_is_large(path)], "shouldIgnore": False, "oid": there and _oid(path, there)}
            for path, there in told
        ]
        self._json({"files": answers})

    def batch(self, body: bytes, name: str) -> None:
        self._check_writer()
        self._repository(name)
        answers = []
        for one in json.loads(body)["objects"]:
            upload = {"href": f"{self.hub.url}/objects/{one['oid']}", "header": {}}
            verify = {"href": f"{self.hub.url}/verify/{one['oid']}", "header": {}}
            new = {} if one["oid"] in self.hub.objects else {"actions": {"upload": upload, "verify": verify}}
            answers.append({"oid": one["oid"], "size": one["size"], **new})
        self._send(200, json.dumps({"objects": answers, "transfer": "basic"}).encode())

    def store(self, body: bytes, oid: str) -> None:
        if self.hub.uploads_left is not None:
            if not self.hub.uploads_left:
                raise Refused(507, "", "no more for now")
            self.hub.uploads_left -= 1
        if self.hub.objects:
            time.sleep(self.hub.slow)
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refused(400, "", "other bytes than announced")
        self.hub.objects[oid] = body
        self._send(200, b"")

    def verify(self, body: bytes, oid: str) -> None:
        if len(self.hub.objects.get(oid, b"")) != json.loads(body)["size"]:
            raise Refused(404, "", "no such object")
        self._send(200, b"")

    def commit(self, body: bytes, name: str, revision: str) -> None:
        self._check_writer()
        found, sha, tree = self._tree(name, revision)
        lines, files = [json.loads(line) for line in body.splitlines()], dict(tree)
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, sha):
            raise Refused(412, "", "A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            kind, value = line["key"], line["value"]
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif kind == "deletedFile":
                del files[value["path"]]
            else:
                raise Refused(400, "", f"what is {kind}?")
        new = found.commit(files, header["summary"], revision)
        self._json({"commitUrl": f"{self.hub.url}/datasets/{name}/commit/{new}", "commitOid": new, "success": True})


def _is_large(path: str) -> bool:
    return LARGE.fullmatch(path) is not None


def _oid(path: str, data: bytes) -> str:
    """Git's name of what is in the repository; of a large file the client compares the SHA-256."""
    if _is_large(path):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(path: str, data: bytes) -> dict[str, Any]:
    found = {"type": "file", "path": path, "oid": _oid("", data), "size": len(data)}
    large = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return {**found, "lfs": large} if _is_large(path) else found


_NAME = r"(?P<name>[^/]+/[^/]+)"
_REV = r"(?P<revision>[^/]+)"
ROUTES = (
    (rf"GET /api/datasets/{_NAME}", "info"),
    (rf"GET /api/datasets/{_NAME}/revision/{_REV}", "info"),
    (rf"GET /api/datasets/{_NAME}/tree/{_REV}(?:/(?P<path>.+))?", "tree"),
    (rf"POST /api/datasets/{_NAME}/paths-info/{_REV}", "paths"),
    (rf"GET /api/datasets/{_NAME}/refs", "refs"),
    (rf"(?:GET|HEAD) /datasets/{_NAME}/resolve/{_REV}/(?P<path>.+)", "resolve"),
    (r"GET /api/whoami-v2", "whoami"),
    (r"POST /api/repos/create", "create"),
    (r"POST /api/validate-yaml", "validate_yaml"),
    (rf"POST /api/datasets/{_NAME}/preupload/{_REV}", "preupload"),
    (rf"POST /datasets/{_NAME}\.git/info/lfs/objects/batch", "batch"),
    (r"PUT /objects/(?P<oid>[0-9a-f]{64})", "store"),
    (r"POST /verify/(?P<oid>[0-9a-f]{64})", "verify"),
    (rf"POST /api/datasets/{_NAME}/commit/{_REV}", "commit"),
)
