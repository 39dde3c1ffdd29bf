"""A Databricks workspace on loopback: what is needed of its API, with every request checked.

Bodies are read with the SDK's own classes and written back: a field that they do not know, or that
does not survive, is answered with 400 as the real service would.
"""

from __future__ import annotations

import base64
import email.parser
import email.policy
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from databricks.sdk.service.catalog import PermissionsChange
from databricks.sdk.service.jobs import JobSettings
from databricks.sdk.service.pipelines import PipelineSpec, RunAs

TOKEN = "canary-databricks-token"
USER = "ana@example.com"
PAGE = 2
"""Jobs on one page: small, so that whoever does not turn pages is found out."""


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message or code.lower()


@dataclass
class Workspace:
    """What the workspace holds, and what it was asked."""

    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    pipelines: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    wheels: dict[str, bytes] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    permissions: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """Table to principal to privileges."""
    tables: set[str] | None = None
    """Tables that exist; any when None."""
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    """Seconds that whoever asked wanted to wait before asking again: nobody has waited for them."""
    before: Callable[[str, str], None] = lambda method, path: None
    """Called before an answer; raises `Refused` to spoil it."""
    after: Callable[[str, str], None] = lambda method, path: None
    """Called when the work is done and before the answer is sent."""
    url: str = ""
    next_id: int = 100

    def add_job(self, settings: dict[str, Any]) -> int:
        self.next_id += 1
        self.jobs[self.next_id] = settings
        return self.next_id

    def requests(self, path: str) -> list[Any]:
        return [body for _, asked, body in self.asked if asked.endswith(path)]

    def changes(self) -> list[str]:
        """Paths of requests that change something."""
        return [path for method, path, _ in self.asked if method != "GET"]


@contextmanager
def serving() -> Iterator[Workspace]:
    workspace = Workspace()

    class Handler(_Handler):
        state = workspace

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    workspace.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield workspace
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def checked(kind: Any, body: dict[str, Any]) -> dict[str, Any]:
    """A body that the SDK's class understands to the last field."""
    again = kind.from_dict(body).as_dict()
    if again != body:
        raise Refused(400, "INVALID_PARAMETER_VALUE", f"unknown fields in {sorted(body)}")
    return dict(body)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: Workspace

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests must be quiet."""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        address = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(length)
        try:
            if address.path.startswith("/.well-known"):
                raise Refused(404, "NOT_FOUND")
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refused(401, "UNAUTHENTICATED")
            body = self._body(data)
            query = {key: values[0] for key, values in parse_qs(address.query).items()}
            self.state.asked.append((method, address.path, body or query))
            self.state.before(method, address.path)
            answer = self._route(method, unquote(address.path), query, body)
            self.state.after(method, address.path)
            self._send(200, answer)
        except Refused as refused:
            content = {"error_code": refused.code, "message": refused.message}
            self._send(refused.status, content)
        except ConnectionAbortedError:
            # the work is done and the answer is lost
            self.close_connection = True

    def _send(self, status: int, answer: Any) -> None:
        raw = isinstance(answer, str | bytes)
        content = answer.encode() if isinstance(answer, str) else answer
        content = content if raw else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream" if raw else "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(content)

    def _body(self, data: bytes) -> Any:
        kind = self.headers.get("Content-Type") or ""
        if not data:
            return {}
        if kind.startswith("multipart/"):
            head = f"Content-Type: {kind}\r\n\r\n".encode()
            parsed = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + data)
            return {
                part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
                for part in parsed.iter_parts()  # type: ignore[attr-defined]
            }
        return json.loads(data)

    def _route(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
        if path == "/api/2.0/preview/scim/v2/Me":
            return {"userName": USER, "id": "1"}
        group, _, verb = path.removeprefix("/api/").partition("/")[2].partition("/")
        if group == "jobs":
            return getattr(self, f"_jobs_{verb.replace('-', '_')}")(query, body)
        if group == "pipelines":
            item, _, verb = verb.partition("/")
            return getattr(self, f"_pipelines_{verb or method.lower()}")(item, query, body)
        if group == "workspace":
            return getattr(self, f"_workspace_{verb.replace('-', '_')}")(query, body)
        if path.startswith("/api/2.1/unity-catalog/permissions/"):
            kind, _, name = path.removeprefix("/api/2.1/unity-catalog/permissions/").partition("/")
            if name.count(".") != ("catalog", "schema", "table").index(kind):
                raise Refused(400, "INVALID_PARAMETER_VALUE", f"{name} is no {kind}")
            return self._permissions(method, name, query, body)
        raise Refused(404, "ENDPOINT_NOT_FOUND", path)

    def _jobs_list(self, query: dict[str, str], body: Any) -> Any:
        name = query.get("name", "").lower()
        found = [
            {"job_id": key, "settings": {k: v for k, v in job.items() if k != "tasks"}}
            for key, job in sorted(self.state.jobs.items(), reverse=True)
            if not name or job.get("name", "").lower() == name
        ]
        start = int(query.get("page_token") or 0)
        more = {"next_page_token": str(start + PAGE)} if len(found) > start + PAGE else {}
        return {"jobs": found[start : start + PAGE], "has_more": bool(more), **more}

    def _jobs_get(self, query: dict[str, str], body: Any) -> Any:
        job = self._job(int(query["job_id"]))
        # the service fills in what was left out
        defaults = {"format": "MULTI_TASK", "email_notifications": {}, "timeout_seconds": 0}
        tasks = [{"run_if": "ALL_SUCCESS", **task} for task in job.get("tasks", ())]
        settings = {**defaults, **job, "tasks": tasks}
        return {"job_id": int(query["job_id"]), "settings": settings}

    def _jobs_create(self, query: dict[str, str], body: Any) -> Any:
        return {"job_id": self.state.add_job(checked(JobSettings, body))}

    def _jobs_reset(self, query: dict[str, str], body: Any) -> Any:
        assert set(body) == {"job_id", "new_settings"}
        self._job(body["job_id"])
        self.state.jobs[body["job_id"]] = checked(JobSettings, body["new_settings"])
        return {}

    def _jobs_run_now(self, query: dict[str, str], body: Any) -> Any:
        self._job(body["job_id"])
        return {"run_id": 1, "number_in_job": 1}

    def _jobs_delete(self, query: dict[str, str], body: Any) -> Any:
        self._job(body["job_id"])
        del self.state.jobs[body["job_id"]]
        return {}

    def _job(self, key: int) -> dict[str, Any]:
        if key not in self.state.jobs:
            raise Refused(404, "RESOURCE_DOES_NOT_EXIST")
        return self.state.jobs[key]

    def _pipelines_get(self, item: str, query: dict[str, str], body: Any) -> Any:
        if not item:
            match = re.fullmatch(r"name LIKE '([^']*)'", query["filter"])
            assert match is not None
            pattern = re.compile(re.escape(match[1]).replace("%", ".*").replace("_", "."))
            known = self.state.pipelines.items()
            found = [(key, it["name"]) for key, it in known if pattern.fullmatch(it["name"])]
            return {"statuses": [{"pipeline_id": key, "name": name} for key, name in found]}
        spec = dict(self._pipeline(item))
        about = {"pipeline_id": item, "name": spec["name"]}
        run_as = {"run_as": spec.pop("run_as")} if "run_as" in spec else {}
        # the service fills in what was left out
        return {**about, **run_as, "spec": {"id": item, "edition": "ADVANCED", **spec}}

    def _pipelines_post(self, item: str, query: dict[str, str], body: Any) -> Any:
        taken = {it["name"] for it in self.state.pipelines.values()}
        if body["name"] in taken:
            raise Refused(400, "RESOURCE_CONFLICT", "the name is taken")
        self.state.next_id += 1
        key = f"00000000-0000-4000-8000-{self.state.next_id:012}"
        self.state.pipelines[key] = self._specified(body)
        return {"pipeline_id": key}

    def _pipelines_put(self, item: str, query: dict[str, str], body: Any) -> Any:
        self._pipeline(item)
        self.state.pipelines[item] = self._specified(body)
        return {}

    def _pipelines_delete(self, item: str, query: dict[str, str], body: Any) -> Any:
        self._pipeline(item)
        assert query == {"cascade": "false"}, "its tables would be deleted, too"
        del self.state.pipelines[item]
        return {}

    def _pipelines_updates(self, item: str, query: dict[str, str], body: Any) -> Any:
        self._pipeline(item)
        return {"update_id": "u1"}

    def _pipeline(self, item: str) -> dict[str, Any]:
        if item not in self.state.pipelines:
            raise Refused(404, "RESOURCE_DOES_NOT_EXIST")
        return self.state.pipelines[item]

    def _specified(self, body: dict[str, Any]) -> dict[str, Any]:
        run_as = {"run_as": checked(RunAs, body["run_as"])} if "run_as" in body else {}
        own = {key: value for key, value in body.items() if key not in ("run_as", "pipeline_id")}
        return {**checked(PipelineSpec, own), **run_as}

    def _workspace_import(self, query: dict[str, str], body: Any) -> Any:
        path = body["path"].decode()
        if path.rpartition("/")[0] not in self.state.folders:
            raise Refused(404, "RESOURCE_DOES_NOT_EXIST", "the parent folder does not exist")
        if path in self.state.files and body.get("overwrite") != b"true":
            raise Refused(400, "RESOURCE_ALREADY_EXISTS")
        assert body["format"] == b"RAW"
        if path.endswith(".whl"):
            self.state.wheels[path] = body["content"]
        self.state.files[path] = body["content"].decode("utf-8", "replace")
        return {}

    def _workspace_export(self, query: dict[str, str], body: Any) -> Any:
        if query["path"] not in self.state.files:
            raise Refused(404, "RESOURCE_DOES_NOT_EXIST")
        text = self.state.files[query["path"]]
        if query.get("direct_download") == "true":
            return self.state.wheels.get(query["path"], text)
        return {"content": base64.b64encode(text.encode()).decode()}

    def _workspace_mkdirs(self, query: dict[str, str], body: Any) -> Any:
        self.state.folders.add(body["path"])
        return {}

    def _workspace_list(self, query: dict[str, str], body: Any) -> Any:
        inside = [p for p in self.state.files if p.rpartition("/")[0] == query["path"]]
        return {"objects": [{"path": path, "object_type": "FILE"} for path in inside]}

    def _workspace_delete(self, query: dict[str, str], body: Any) -> Any:
        path = body["path"]
        if path in self.state.folders:
            if any(file.startswith(f"{path}/") for file in self.state.files):
                raise Refused(400, "DIRECTORY_NOT_EMPTY")
            self.state.folders.discard(path)
        elif self.state.files.pop(path, None) is None:
            raise Refused(404, "RESOURCE_DOES_NOT_EXIST")
        self.state.wheels.pop(path, None)
        return {}

    def _permissions(self, method: str, name: str, query: dict[str, str], body: Any) -> Any:
        unknown = self.state.tables is not None and name not in self.state.tables
        if unknown and name.count(".") > 1:
            raise Refused(404, "TABLE_DOES_NOT_EXIST", f"table {name} does not exist")
        held = self.state.permissions.setdefault(name, {})
        if method == "PATCH":
            assert set(body) == {"changes"}
            for change in (checked(PermissionsChange, each) for each in body["changes"]):
                privileges = held.setdefault(change["principal"], set())
                privileges |= set(change.get("add") or ())
                privileges -= set(change.get("remove") or ())
        return {
            "privilege_assignments": [
                {"principal": principal, "privileges": sorted(privileges)}
                for principal, privileges in sorted(held.items())
                if privileges and query.get("principal") in (None, principal)
            ]
        }
