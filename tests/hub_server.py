"""A model hub on loopback that answers as the real one: commits, redirects, ranges, checksums, access, faults.

Small files are redirected within the hub, large ones to a second server, the storage, which refuses tokens. Both count
their requests.
"""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".pth", ".gguf")
"""Suffixes of files in large file storage."""
PIECE = 64 << 10


class Request(NamedTuple):
    """A request as a server received it."""

    server: str
    method: str
    path: str
    range: str | None
    token: str | None


@dataclass
class Hub:
    """The state of a hub: files by repository and commit, and faults that the next requests meet.

    `gated` are repositories whose files need `token`, `private` those that only it can see. `busy` are (text in the
    path, status, headers) of requests to refuse. `cuts` are (text in the path, bytes) after which the storage closes
    the connection. `stall` holds the storage back after as many bytes, until `released` is set.
    """

    url: str = ""
    storage: str = ""
    commits: dict[str, dict[str, Mapping[str, bytes]]] = field(default_factory=dict)
    main: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    token: str = "hf_right"  # noqa: S105 - of this server
    busy: deque[tuple[str, int, dict[str, str]]] = field(default_factory=deque)
    cuts: deque[tuple[str, int]] = field(default_factory=deque)
    stall: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    requests: list[Request] = field(default_factory=list)

    def commit(self, repo: str, files: Mapping[str, bytes]) -> str:
        """Add a commit to a repository's main branch; return its hash."""
        text = repr([repo, sorted((name, blob_id(data)) for name, data in files.items())])
        sha = blob_id(text.encode())
        self.commits.setdefault(repo, {})[sha] = files
        self.main[repo] = sha
        return sha

    def of(self, text: str, method: str = "GET") -> list[Request]:
        """Return the requests of a method whose path has a text."""
        return [request for request in self.requests if text in request.path and request.method == method]

    def find(self, repo: str, revision: str) -> str | None:
        """Return the commit of a revision."""
        sha = self.main.get(repo) if revision == "main" else revision
        return sha if sha in self.commits.get(repo, {}) else None


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler, ABC):
    protocol_version = "HTTP/1.1"
    hub: Hub
    name: str

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        token = self.headers.get("Authorization")
        request = Request(self.name, self.command, unquote(self.path), self.headers.get("Range"), token)
        self.hub.requests.append(request)
        for fault in self.hub.busy:
            if fault[0] in request.path:
                self.hub.busy.remove(fault)
                return self.answer(fault[1], fault[2])
        return self.reply(urlsplit(request.path).path, parse_qs(urlsplit(request.path).query), token)

    @abstractmethod
    def reply(self, path: str, query: Mapping[str, list[str]], token: str | None) -> None:
        """Answer a request that the script did not make fail."""

    def answer(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *message: object) -> None:
        """Log nothing."""


class _HubHandler(_Handler):
    name = "hub"

    def reply(self, path: str, query: Mapping[str, list[str]], token: str | None) -> None:
        parts = path.strip("/").split("/")
        is_known = token == f"Bearer {self.hub.token}"
        if token is not None and not is_known:
            return self.refuse(401, "", "Invalid credentials in Authorization header")
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if path.startswith("/api/resolve-cache/models/"):
            repo = "/".join(parts[3:5])
        if repo not in self.hub.commits or (repo in self.hub.private and not is_known):
            return self.refuse(404 if is_known else 401, "RepoNotFound", "Repository not found")
        if path.startswith(f"/api/models/{repo}"):
            return self.list(repo, parts[4:], query)
        if path.startswith("/api/resolve-cache/"):
            sha, name = parts[5], "/".join(parts[6:])
            data = self.hub.commits[repo][sha][name]
            return self.answer(200, {"ETag": f'"{blob_id(data)}"', "X-Repo-Commit": sha}, data)
        return self.resolve(repo, parts[3], "/".join(parts[4:]), is_known)

    def refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.answer(status, headers, json.dumps({"error": message}).encode())

    def list(self, repo: str, parts: list[str], query: Mapping[str, list[str]]) -> None:
        sha = self.hub.find(repo, parts[1] if len(parts) > 1 else "main")
        if sha is None:
            return self.refuse(404, "RevisionNotFound", "Invalid rev id")
        rows: list[dict[str, object]] = []
        is_tree, has_sizes = bool(parts) and parts[0] == "tree", "blobs" in query
        for name, data in self.hub.commits[repo][sha].items():
            row: dict[str, object] = {"rfilename": name}
            about = {"size": len(data), "blobId": blob_id(data)}
            stored = {"sha256": checksum(data), "oid": checksum(data), "size": len(data), "pointerSize": 134}
            if is_tree:
                row = {"type": "file", "path": name, "size": len(data), "oid": blob_id(data)}
            elif has_sizes:
                row |= about
            if (is_tree or has_sizes) and name.endswith(LARGE):
                row["lfs"] = stored
            rows.append(row)
        body: object = rows if is_tree else {"id": repo, "sha": sha, "siblings": rows, "tags": [], "downloads": 0}
        return self.answer(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def resolve(self, repo: str, revision: str, name: str, is_known: bool) -> None:
        sha = self.hub.find(repo, revision)
        if repo in self.hub.gated and not is_known:
            return self.refuse(401, "GatedRepo", f"Access to model {repo} is restricted.")
        if sha is None:
            return self.refuse(404, "RevisionNotFound", "Invalid rev id")
        data = self.hub.commits[repo][sha].get(name)
        if data is None:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        if not name.endswith(LARGE):
            return self.answer(307, {"Location": f"/api/resolve-cache/models/{repo}/{sha}/{name}"})
        linked = {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{checksum(data)}"', "X-Repo-Commit": sha}
        place = f"{self.hub.storage}/{repo}/{sha}/{name}?X-Signature=1"
        return self.answer(302, {"Location": place, "Accept-Ranges": "bytes", **linked})


class _StorageHandler(_Handler):
    name = "storage"

    def reply(self, path: str, query: Mapping[str, list[str]], token: str | None) -> None:
        if token is not None or "X-Signature" not in query:
            return self.answer(400, {}, b"Only one auth mechanism allowed")
        owner, model, sha, *name = path.strip("/").split("/")
        data = self.hub.commits[f"{owner}/{model}"][sha]["/".join(name)]
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if begin >= len(data):
            return self.answer(416, {"Content-Range": f"bytes */{len(data)}"})
        status = 206 if "Range" in self.headers else 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) - begin))
        self.send_header("ETag", f'"{checksum(data)}"')
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.send(path, data, begin)
        return None

    def send(self, path: str, data: bytes, begin: int) -> None:
        """Write the data from a position on, up to a cut, or held back at a stall."""
        cut = next((fault for fault in self.hub.cuts if fault[0] in path), None)
        end = len(data)
        if cut is not None:
            self.hub.cuts.remove(cut)
            end = min(end, begin + cut[1])
            self.close_connection = True
        for start in range(begin, end, PIECE):
            if self.hub.stall and start >= self.hub.stall:
                self.hub.released.wait(60)
            try:
                self.wfile.write(data[start : min(start + PIECE, end)])
            except OSError:  # the client was killed
                self.close_connection = True
                return


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect."""


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve a hub without repositories; its address is `HF_ENDPOINT` for a client."""
    hub, servers = Hub(), []
    for handler in (_StorageHandler, _HubHandler):
        server = _Server(("127.0.0.1", 0), type("Handler", (handler,), {"hub": hub}))
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
    hub.storage, hub.url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        hub.released.set()
        for server in servers:
            server.shutdown()
            server.server_close()
