"""Entries in Unity Catalog, by its REST API, of Databricks and of the open-source server.

The API creates, lists and deletes tables. Newer servers also have an API for Delta clients, which
changes the columns of an entry. Without it, an entry is deleted and created again, which loses its
grants: so only an entry without grants is replaced. Only external tables are deleted: for a managed
table the server would delete the files, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from distributary.catalog.base import (
    ABSENT,
    FINGERPRINT,
    FOREIGN,
    MADE,
    NOT_EMPTY,
    CatalogEntry,
    Found,
    text_type,
    uri_of,
    was_made,
)
from distributary.config.catalog import UnityCatalogConfig
from distributary.config.registry import RegistryConfig
from distributary.delta.column_merge import Field
from distributary.errors import CatalogError, CatalogUnavailableError, ConfigError
from distributary.registry.http.transport import Secrets, Silence, Transport, clients, trust

_API = "/api/2.1/unity-catalog"
_PAGE = 50
"""The largest number of tables that the open-source server returns at once."""
_MOST_PAGES = 10_000
_TABLES, _SCHEMAS = "/tables", "/schemas"
_EXISTS = ("ALREADY_EXISTS", "TABLE_ALREADY_EXISTS", "SCHEMA_ALREADY_EXISTS")
_DASHED = {
    "elementType": "element-type",
    "containsNull": "contains-null",
    "keyType": "key-type",
    "valueType": "value-type",
    "valueContainsNull": "value-contains-null",
}


class UnityTables:
    """The entries of one schema of Unity Catalog."""

    parallel = 8

    def __init__(self, config: UnityCatalogConfig) -> None:
        self._config = config
        self._ids: dict[str, str] = {}
        """The ids that the server gave to tables, by name in lower case."""
        self._can_change: bool | None = None
        # `Registry` is used as the settings of any server with a token and a timeout.
        server = RegistryConfig(
            url=config.url,
            token=config.token,
            ca_location=config.ca_location,
            timeout=config.timeout,
        )
        try:
            self._transport = Transport(
                clients(server, trust(server)),
                seconds=config.timeout.total_seconds(),
                secrets=Secrets(server),
                peer="catalog",
                setting="lake.catalog.url",
            )
        except ConfigError as error:
            where = error.where.replace("registry.", "lake.catalog.")
            raise CatalogError(
                error.what, where=where, evidence=error.evidence, next_step=error.next_step
            ) from None

    def prepare(self) -> None:
        """Create the schema, if it does not exist; the catalog must exist."""
        if self._ask("GET", self._schema, absent=True) is None:
            wanted = {"name": self._config.schema_, "catalog_name": self._config.name}
            self._ask("POST", _SCHEMAS, {**wanted, "properties": MADE}, exists=True)

    def entries(self) -> dict[str, Found]:
        """List all tables of the schema, page by page."""
        query = {
            "catalog_name": self._config.name,
            "schema_name": self._config.schema_,
            "max_results": str(_PAGE),
        }
        entries: dict[str, Found] = {}
        for _ in range(_MOST_PAGES):
            page = self._ask("GET", _TABLES, query=query, absent=True) or {}
            for table in page.get("tables") or ():
                name = str(table.get("name", "")).lower()
                entries[name] = _entry(table)
                self._ids[name] = str(table.get("table_id") or "")
            token = page.get("next_page_token")
            if not token:
                break
            query = query | {"page_token": str(token)}
        return entries

    def create(self, entry: CatalogEntry) -> None:
        """Add an external table."""
        created = self._ask("POST", _TABLES, self._described(entry))
        self._ids[entry.name.lower()] = str((created or {}).get("table_id") or "")

    def update(self, entry: CatalogEntry) -> None:
        """Change columns and comments.

        Replace the entry if the server cannot and no grants are lost.
        """
        current = self._ask("GET", f"{_TABLES}/{self._path_of(entry.name)}", absent=True)
        # A listing need not have all properties of a table.
        if current is not None and _is_current(current, self._described(entry)):
            return
        if self._has_updates():
            self._change(entry)
            return
        name = self._path_of(entry.name)
        held = self._ask("GET", f"/permissions/table/{name}", absent=True)
        if held is None or held.get("privilege_assignments"):
            raise CatalogError(
                f"the catalog has outdated columns for {entry.name}",
                where=f"{'.'.join(self._config.names)}.{entry.name}",
                evidence="the server cannot change columns, and a new entry would lose the grants",
                next_step="on Databricks: MSCK REPAIR TABLE ... SYNC METADATA; engines that read "
                "the Delta log have the new columns already",
            )
        self.drop(entry.name)
        self.create(entry)

    def drop(self, name: str) -> None:
        """Delete an entry, if it belongs to an external table."""
        current = self._ask("GET", f"{_TABLES}/{self._path_of(name)}", absent=True)
        if current is None:
            return
        if current.get("table_type") != "EXTERNAL":
            raise CatalogError(
                f"{name} is not an external table: deleting the entry would delete its files",
                where=".".join((*self._config.names, name)),
                evidence=f"table_type {str(current.get('table_type'))[:40]}",
                next_step="inspect the table in the catalog",
            )
        self._ask("DELETE", f"{_TABLES}/{self._path_of(name)}", absent=True)

    def drop_schema(self) -> str:
        """Delete the schema if it is ours and empty; the server checks again that it is empty."""
        schema = self._ask("GET", self._schema, absent=True)
        if schema is None:
            return ABSENT
        if not was_made(schema.get("properties")):
            return FOREIGN
        if self.entries():
            return NOT_EMPTY
        self._ask("DELETE", self._schema, query={"force": "false"}, absent=True)
        return ""

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    @property
    def _schema(self) -> str:
        return f"{_SCHEMAS}/{quote('.'.join(self._config.names), safe='')}"

    def _path_of(self, table: str) -> str:
        return quote(".".join((*self._config.names, table)), safe="")

    def _described(self, entry: CatalogEntry) -> dict[str, Any]:
        partitions = {name: number for number, name in enumerate(entry.partition_by)}
        return {
            "name": entry.name,
            "catalog_name": self._config.name,
            "schema_name": self._config.schema_,
            "table_type": "EXTERNAL",
            "data_source_format": entry.format.upper(),
            "columns": [
                _column(field, number, partitions.get(field["name"]))
                for number, field in enumerate(entry.fields)
            ],
            "storage_location": uri_of(entry.location),
            "comment": entry.comment,
            "properties": {FINGERPRINT: entry.fingerprint},
        }

    def _has_updates(self) -> bool:
        """Return whether the server has the API for Delta clients; one request is sent."""
        if self._can_change is None:
            query = {"catalog": self._config.name, "protocol-versions": "1.0"}
            try:
                config = self._ask("GET", "/delta/v1/config", query=query, absent=True)
            except CatalogUnavailableError:
                raise
            except CatalogError:
                # A server that does not know the address may answer with any error.
                config = None
            endpoints = (config or {}).get("endpoints") or ()
            wanted = "POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"
            self._can_change = wanted in endpoints
        return self._can_change

    def _change(self, entry: CatalogEntry) -> None:
        catalog, schema, table = (quote(n, safe="") for n in (*self._config.names, entry.name))
        updates = [
            {"action": "set-columns", "columns": _struct(entry.fields)},
            {"action": "set-table-comment", "comment": entry.comment},
            {"action": "set-properties", "updates": {FINGERPRINT: entry.fingerprint}},
        ]
        uuid = self._ids.get(entry.name.lower(), "")
        body = {"requirements": [{"type": "assert-table-uuid", "uuid": uuid}], "updates": updates}
        place = f"/delta/v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"
        self._ask("POST", place, body)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        absent: bool = False,
        exists: bool = False,
    ) -> dict[str, Any] | None:
        """Send a request and return its answer; None for an `absent` entry or one that `exists`."""
        (address,) = self._transport.addresses
        where = f"{method} {address}{_API}{path}"
        try:
            answer = self._transport.ask(
                address,
                method,
                f"{_API}{path}",
                query=query or {},
                body=None if body is None else json.dumps(body).encode(),
                headers={"Accept": "application/json", "Content-Type": "application/json"},
            )
        except Silence as silence:
            raise CatalogUnavailableError(
                silence.what,
                where=where,
                evidence=silence.evidence,
                next_step="start the catalog, or correct lake.catalog; the request is tried again",
            ) from None
        try:
            document = json.loads(answer.body or b"{}")
        except (ValueError, RecursionError):
            document = None
        if 200 <= answer.status < 300 and isinstance(document, dict):
            return document
        problem = document if isinstance(document, dict) else {}
        code = str(problem.get("error_code") or "")
        if (absent and answer.status == 404) or (exists and code in _EXISTS):
            return None
        words = str(problem.get("message") or "the answer is not from Unity Catalog")
        kind = CatalogUnavailableError if answer.is_busy else CatalogError
        raise kind(
            "the catalog refused a request"
            if answer.status >= 400
            else "the address is not of a catalog",
            where=where,
            evidence=self._transport.shown(f"{answer.status} {code} {words}"[:400]),
            next_step=_NEXT_STEPS.get(
                answer.status, "fix the reported problem; the request is tried again"
            ),
        )


_NEXT_STEPS = {
    401: "check lake.catalog.token",
    403: "grant USE CATALOG, USE SCHEMA and CREATE TABLE, and CREATE EXTERNAL TABLE on the "
    "location; the request is tried again",
    404: "check lake.catalog.url and name; the catalog itself must exist",
}


def _entry(table: Mapping[str, Any]) -> Found:
    properties = table.get("properties") or {}
    place = table.get("storage_location") if table.get("table_type") == "EXTERNAL" else None
    return Found(place, properties.get(FINGERPRINT))


def _is_current(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether an entry has the wanted columns and comments, even without a fingerprint."""
    if (current.get("properties") or {}).get(FINGERPRINT) == wanted["properties"][FINGERPRINT]:
        return True
    return _comparable(current) == _comparable(wanted)


def _comparable(table: Mapping[str, Any]) -> list[object]:
    columns = (
        (c.get("name"), str(c.get("type_text") or "").lower(), c.get("comment") or "")
        for c in table.get("columns") or ()
    )
    return [table.get("comment") or "", *columns]


def _column(field: Field, position: int, partition: int | None) -> dict[str, Any]:
    spelled = field["type"]
    column: dict[str, Any] = {
        "name": field["name"],
        "type_text": text_type(spelled),
        "type_json": json.dumps({**field, "metadata": _comment(field)}),
        "type_name": _type_name(spelled),
        "position": position,
        "comment": str(field["metadata"].get("comment") or ""),
        "nullable": bool(field.get("nullable", True)),
    }
    if isinstance(spelled, str) and spelled.startswith("decimal("):
        precision, scale = spelled.removeprefix("decimal(").removesuffix(")").split(",")
        column |= {"type_precision": int(precision), "type_scale": int(scale)}
    return column if partition is None else column | {"partition_index": partition}


def _type_name(spelled: object) -> str:
    if isinstance(spelled, str):
        plain = spelled.partition("(")[0]
        return "INT" if plain == "integer" else plain.upper()
    return str(spelled["type"]).upper() if isinstance(spelled, dict) else "STRING"


def _comment(field: Field) -> dict[str, Any]:
    """Return the part of a column's metadata that readers understand."""
    text = field["metadata"].get("comment")
    return {"comment": text} if text else {}


def _struct(fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return columns in the JSON of the API for Delta clients, whose keys have dashes."""
    return {"type": "struct", "fields": [_dashed(field) for field in fields]}


def _dashed(field: Field) -> dict[str, Any]:
    return {
        "name": field["name"],
        "type": _dashed_type(field["type"]),
        "nullable": bool(field.get("nullable", True)),
        "metadata": _comment(field),
    }


def _dashed_type(spelled: Any) -> Any:
    if not isinstance(spelled, dict):
        return spelled
    if spelled["type"] == "struct":
        return _struct(tuple(spelled["fields"]))
    return {_DASHED.get(key, key): _dashed_type(value) for key, value in spelled.items()}
