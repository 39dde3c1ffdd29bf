"""Unity Catalog on loopback: what is needed of its API, with every request held to its contract.

The shapes are those of `api/all.yaml` and `api/delta.yaml` of the open-source server (0.7), with
no field beyond them allowed; names, types and errors are checked as its own code does.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import jsonschema

TOKEN = "canary-unity-token"
PAGE = 2
"""Tables on one page: small, so that whoever does not turn pages is found out."""
API = "/api/2.1/unity-catalog"
UPDATE = "POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"

_TYPE_NAMES = """BOOLEAN BYTE SHORT INT LONG FLOAT DOUBLE DATE TIMESTAMP TIMESTAMP_NTZ STRING BINARY
DECIMAL INTERVAL ARRAY STRUCT MAP VARIANT CHAR NULL USER_DEFINED_TYPE TABLE_TYPE""".split()
_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_PROPERTIES = {"type": "object", "additionalProperties": _TEXT}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


_COLUMN = _object(
    # without these two the server fails on its own null
    "name type_text",
    name=_TEXT,
    type_text=_TEXT,
    type_json=_TEXT,
    type_name={"enum": _TYPE_NAMES},
    type_precision=_NUMBER,
    type_scale=_NUMBER,
    type_interval_type=_TEXT,
    position=_NUMBER,
    comment=_TEXT,
    nullable={"type": "boolean"},
    partition_index=_NUMBER,
)
_CREATE_TABLE = _object(
    "name catalog_name schema_name table_type columns",
    name=_TEXT,
    catalog_name=_TEXT,
    schema_name=_TEXT,
    table_type={"enum": ["MANAGED", "EXTERNAL"]},
    data_source_format={"enum": ["DELTA", "CSV", "JSON", "AVRO", "PARQUET", "ORC", "TEXT"]},
    columns={"type": "array", "items": _COLUMN},
    storage_location=_TEXT,
    comment=_TEXT,
    properties=_PROPERTIES,
)
_CREATE_SCHEMA = _object(
    "name catalog_name", name=_TEXT, catalog_name=_TEXT, comment=_TEXT, properties=_PROPERTIES
)
_DELTA_FIELD = _object(
    "name type nullable metadata",
    name=_TEXT,
    type={"anyOf": [_TEXT, {"type": "object", "required": ["type"]}]},
    nullable={"type": "boolean"},
    metadata={"type": "object"},
)
_STRUCT = _object(
    "type fields", type={"const": "struct"}, fields={"type": "array", "items": _DELTA_FIELD}
)
_UPDATES = [
    _object("action columns", action={"const": "set-columns"}, columns=_STRUCT),
    _object("action comment", action={"const": "set-table-comment"}, comment=_TEXT),
    _object("action updates", action={"const": "set-properties"}, updates=_PROPERTIES),
]
_UPDATE_TABLE = _object(
    "requirements updates",
    requirements={
        "type": "array",
        "minItems": 1,
        "items": _object("type uuid", type={"const": "assert-table-uuid"}, uuid=_TEXT),
    },
    updates={"type": "array", "minItems": 1, "items": {"oneOf": _UPDATES}},
)
_NAME = re.compile(r"[a-zA-Z0-9_@-]+")
_DASHED = {"element-type", "contains-null", "key-type", "value-type", "value-contains-null"}


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message or code.lower()


@dataclass
class Unity:
    """What the server holds, and what it was asked."""

    url: str = ""
    updates: bool = True
    """Whether it has the API for Delta clients."""
    catalogs: set[str] = field(default_factory=lambda: {"main"})
    schemas: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """The properties of each schema."""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    permissions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str, str], None] = lambda method, path: None
    """Called before an answer; raises `Refused` to spoil it."""
    deleted_files: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, method: str, path: str) -> int:
        return sum(m == method and p.startswith(path) for m, p in self.asked)

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
        self.before(method, path)
        match method, path.split("/")[1:]:
            case "GET", ["schemas", name]:
                catalog, schema = unquote(name).split(".")
                if (catalog, schema) not in self.schemas:
                    raise Refused(404, "SCHEMA_NOT_FOUND")
                properties = self.schemas[catalog, schema]
                return {"name": schema, "catalog_name": catalog, "properties": properties}
            case "DELETE", ["schemas", name]:
                catalog, schema = unquote(name).split(".")
                assert query == {"force": "false"}
                if any(table.startswith(f"{catalog}.{schema}.") for table in self.tables):
                    raise Refused(400, "FAILED_PRECONDITION", "the schema is not empty")
                del self.schemas[catalog, schema]
                return {}
            case "POST", ["schemas"]:
                return self._create_schema(body)
            case "GET", ["tables"]:
                return self._page(query)
            case "POST", ["tables"]:
                return self._create_table(body)
            case "GET", ["tables", name]:
                return self._table(unquote(name))
            case "DELETE", ["tables", name]:
                gone = self._table(unquote(name))
                if gone["table_type"] == "MANAGED":
                    self.deleted_files.append(gone["storage_location"])
                del self.tables[unquote(name).lower()]
                self.permissions.pop(unquote(name), None)
                return {}
            case "GET", ["permissions", "table", name]:
                self._table(unquote(name))
                return {"privilege_assignments": self.permissions.get(unquote(name), [])}
            case "GET", ["delta", "v1", "config"] if self.updates:
                assert set(query) == {"catalog", "protocol-versions"}
                return {"endpoints": [UPDATE], "protocol-version": "1.0"}
            case "POST", ["delta", "v1", "catalogs", c, "schemas", s, "tables", t] if self.updates:
                return self._update(".".join(map(unquote, (c, s, t))), body)
        raise Refused(404, "NOT_FOUND", f"no such endpoint: {method} {path}")

    def _table(self, name: str) -> dict[str, Any]:
        if len(name.split(".")) != 3:
            raise Refused(400, "INVALID_ARGUMENT", "Invalid table name")
        try:
            return self.tables[name.lower()]
        except KeyError:
            raise Refused(404, "TABLE_NOT_FOUND") from None

    def _create_schema(self, body: Any) -> Any:
        _valid(body, _CREATE_SCHEMA)
        _named(body["name"])
        if body["catalog_name"] not in self.catalogs:
            raise Refused(404, "CATALOG_NOT_FOUND")
        if (body["catalog_name"], body["name"]) in self.schemas:
            raise Refused(400, "SCHEMA_ALREADY_EXISTS")
        self.schemas[body["catalog_name"], body["name"]] = body.get("properties", {})
        return body

    def _page(self, query: dict[str, str]) -> Any:
        assert set(query) <= {"catalog_name", "schema_name", "max_results", "page_token"}
        assert 0 <= int(query.get("max_results", "0")) <= 50
        place = (query["catalog_name"], query["schema_name"])
        if place not in self.schemas:
            raise Refused(404, "SCHEMA_NOT_FOUND")
        mine = sorted(n for n in self.tables if n.startswith(".".join(place).lower() + "."))
        rest = [n for n in mine if n > query.get("page_token", "")]
        page = {"tables": [self.tables[n] for n in rest[:PAGE]]}
        return page | ({"next_page_token": rest[PAGE - 1]} if len(rest) > PAGE else {})

    def _create_table(self, body: Any) -> Any:
        _valid(body, _CREATE_TABLE)
        _named(body["name"])
        for number, column in enumerate(body["columns"]):
            _column(column, number)
        if (body["catalog_name"], body["schema_name"]) not in self.schemas:
            raise Refused(404, "SCHEMA_NOT_FOUND")
        name = f"{body['catalog_name']}.{body['schema_name']}.{body['name']}".lower()
        if name in self.tables:
            raise Refused(400, "TABLE_ALREADY_EXISTS")
        if not re.match(r"(file|s3|abfss|gs)://", body.get("storage_location", "")):
            raise Refused(400, "INVALID_ARGUMENT", "storage_location")
        self.tables[name] = body | {"table_id": str(uuid.uuid4())}
        return self.tables[name]

    def _update(self, name: str, body: Any) -> Any:
        _valid(body, _UPDATE_TABLE)
        table = self._table(name)
        if body["requirements"][0]["uuid"] != table["table_id"]:
            raise Refused(409, "UPDATE_REQUIREMENT_CONFLICT")
        actions = [each["action"] for each in body["updates"]]
        assert len(set(actions)) == len(actions)
        for each in body["updates"]:
            if each["action"] == "set-columns":
                _dashes(each["columns"])
                table["columns"] = [
                    {"name": f["name"], "comment": f["metadata"].get("comment", "")}
                    for f in each["columns"]["fields"]
                ]
            elif each["action"] == "set-table-comment":
                table["comment"] = each["comment"]
            else:
                table["properties"] = table.get("properties", {}) | each["updates"]
        return {"metadata": {}}


def _valid(body: Any, schema: dict[str, Any]) -> None:
    try:
        jsonschema.validate(body, schema)
    except jsonschema.ValidationError as error:
        raise Refused(400, "INVALID_ARGUMENT", error.message) from error


def _named(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > 255:
        raise Refused(400, "INVALID_ARGUMENT", "Name cannot contain a period, space ...")


def _column(column: dict[str, Any], number: int) -> None:
    """As the server's `ColumnUtils` reads it: a field of Spark's, in JSON."""
    told = json.loads(column["type_json"])
    good = told["name"] == column["name"] and column["position"] == number
    decimal = column["type_name"] == "DECIMAL"
    if not good or not column["type_text"] or decimal != ("type_precision" in column):
        raise Refused(400, "INVALID_ARGUMENT", column["name"])


def _dashes(spelled: Any) -> None:
    """The API for Delta clients spells keys with dashes."""
    if isinstance(spelled, list):
        for each in spelled:
            _dashes(each)
    elif isinstance(spelled, dict):
        if spelled.get("type") in ("array", "map"):
            assert set(spelled) - {"type"} <= _DASHED, spelled
        for each in spelled.values():
            _dashes(each)


@contextmanager
def unity_server(**settings: Any) -> Iterator[Unity]:
    unity = Unity(**settings)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            size = int(self.headers.get("Content-Length") or 0)
            data = self.rfile.read(size)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            path = parts.path.removeprefix(API)
            try:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    raise Refused(401, "UNAUTHENTICATED", f"not {TOKEN}, but something else")
                with unity.lock:
                    unity.asked.append((self.command, path))
                    body = unity.answer(
                        self.command, path, query, json.loads(data) if data else None
                    )
                status = 200
            except Refused as refused:
                status = refused.status
                body = {"error_code": refused.code, "message": refused.message, "details": []}
            except Exception as error:
                status, body = 500, {"error_code": "INTERNAL", "message": repr(error)}
            sent = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = do_DELETE = do_PATCH = _serve

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    unity.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield unity
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
