"""A W&B server in this process, as far as a run needs one: GraphQL for runs, file streams with history, uploads.

It keeps what it is sent, and every request's headers and body, so that a test can look for what should not be there.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

ENTITY = "tester"


@dataclass
class StoredRun:
    """A run as the server has it. `history`: line number -> the row, as the file stream addresses it."""

    name: str
    project: str
    variables: dict[str, Any] = field(default_factory=dict)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    upserts: int = 0
    uploads: dict[str, bytes] = field(default_factory=dict)  # file by name

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its history without W&B's own keys, in the order of its lines."""
        lines = (self.history[number] for number in sorted(self.history))
        return [{k: v for k, v in line.items() if not k.startswith("_")} for line in lines]

    @property
    def steps(self) -> list[int]:
        return [int(self.history[number]["_step"]) for number in sorted(self.history)]


class FakeWandb:
    """`url` is a WANDB_BASE_URL. While `down`, every connection is cut as a lost network cuts it."""

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.bodies: list[bytes] = []
        self.asked: set[str] = set()  # operations that were called
        self.down = False
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None: ...

            def handle(self) -> None:
                with suppress(ConnectionError):  # the client's end of its process
                    super().handle()

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if fake.down:
                    self.close_connection = True
                    self.connection.close()
                    return
                with fake._lock:
                    fake.bodies.append(body)
                    payload = json.dumps(fake._reply(self.command, self.path, body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            do_GET = do_POST = do_PUT = _answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def by_name(self) -> dict[str, StoredRun]:
        """Runs by their display name, which must tell them apart."""
        named = {str(run.variables.get("displayName")): run for run in self.runs.values()}
        assert len(named) == len(self.runs), sorted(self.runs)
        return named

    def _reply(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path)
        if stream:
            self._stream(self.runs[stream[1]], json.loads(body))
            return {"exitcode": None, "limits": {}}
        if path.startswith("/upload/"):
            _, _, run, name = path.split("/", 3)
            self.runs[run].uploads[unquote(name)] = body
        if path != "/graphql":
            return {}
        asked = json.loads(body)
        name = re.match(r"\s*(?:query|mutation)\s+(\w+)", asked["query"])
        operation = name[1] if name else ""
        self.asked.add(operation)
        return {"data": self._operation(operation, asked.get("variables") or {}, asked["query"])}

    def _operation(self, operation: str, variables: dict[str, Any], query: str) -> dict[str, Any]:
        match operation:
            case "ServerFeaturesQuery":
                return {"serverInfo": {"features": []}}
            case "Viewer":
                who = {"id": "1", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}"}
                return {"viewer": who | {"teams": {"edges": []}}}
            case "RunResumeStatus":
                return {"model": _project(variables["project"]) | {"bucket": self._status(variables["name"])}}
            case "UpsertBucket":
                return {"upsertBucket": self._upsert(variables)}
            case "ArtifactType":
                return {"project": {"artifact": None}}
            case "CreateArtifact":  # a table's copy: known already, so that nothing more of it is sent
                latest = {"id": "artifact", "versionIndex": 0}
                made = {
                    "id": "artifact",
                    "state": "COMMITTED",
                    "artifactSequence": {"id": "1", "latestArtifact": latest},
                }
                return {"createArtifact": {"artifact": made}}
            case "CreateRunFiles":
                where = f"{self.url}/upload/{variables['run']}"
                files = [{"name": name, "uploadUrl": f"{where}/{quote(name)}"} for name in variables["files"]]
                return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        return {}

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        key = variables.get("name") or variables["id"]
        new = key not in self.runs
        run = self.runs.setdefault(key, StoredRun(key, variables.get("project") or "uncategorized"))
        run.upserts += 1
        run.variables |= {k: v for k, v in variables.items() if v is not None}
        bucket = {"id": key, "name": key, "displayName": run.variables.get("displayName"), "description": ""}
        bucket |= {"config": run.variables.get("config", "{}"), "sweepName": None, "project": _project(run.project)}
        return {"bucket": bucket | {"historyLineCount": len(run.history)}, "inserted": new}

    def _status(self, name: str) -> dict[str, Any] | None:
        run = self.runs.get(name)
        if run is None:
            return None
        tail = [json.dumps(run.history[max(run.history)])] if run.history else []
        return {
            **{"id": name, "name": name, "summaryMetrics": (tail or ["{}"])[-1]},
            **{"displayName": run.variables.get("displayName"), "logLineCount": 0, "eventsLineCount": 0},
            **{"historyLineCount": len(run.history), "historyTail": json.dumps(tail), "eventsTail": "[]"},
            **{"config": run.variables.get("config", "{}"), "tags": [], "notes": None, "wandbConfig": '{"t": 1}'},
        }

    def _stream(self, run: StoredRun, sent: dict[str, Any]) -> None:
        history = (sent.get("files") or {}).get("wandb-history.jsonl")
        for number, line in enumerate(history["content"] if history else [], start=history["offset"] if history else 0):
            run.history[number] = json.loads(line)


def _project(name: str) -> dict[str, Any]:
    return {"id": f"project-{name}", "name": name, "entity": {"id": "entity", "name": ENTITY}}


@contextmanager
def fake_wandb() -> Iterator[FakeWandb]:
    fake = FakeWandb()
    try:
        yield fake
    finally:
        fake.close()
