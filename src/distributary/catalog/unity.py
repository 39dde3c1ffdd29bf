"""Entries in Unity Catalog, by its REST API: that of Databricks and of the open-source server.

The API creates, lists and deletes tables. Newer servers also have an API for Delta clients, which
changes the columns of an entry. Without it an entry is deleted and created again, and that loses
what was granted on it: so only an entry without any grants is replaced. What is deleted is
always an external table: of a managed one the server would delete the files, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from distributary.catalog.base import FINGERPRINT, Entry, Found, text_type, uri_of
from distributary.config.catalog import UnityCatalog
from distributary.config.kafka import Registry
from distributary.delta.columns import Field
from distributary.errors import CatalogError, CatalogUnavailableError, ConfigError
from distributary.registry.http.transport import Secrets, Silence, Transport, clients, trust

_API = "/api/2.1/unity-catalog"
_PAGE = 50
"""The most tables that the open-source server gives at once."""
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
    """Entries of one schema."""

    parallel = 8

    def __init__(self, config: UnityCatalog) -> None:
        self._config = config
        self._ids: dict[str, str] = {}
        """By name in lower case: the id that the server gave to a table."""
        self._can_change: bool | None = None
        # a server with a token and a deadline, whatever it is asked
        server = Registry(
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
        """Make the schema, unless it is there; a catalog is for its owner to make."""
        name = f"{self._config.name}.{self._config.schema_}"
        if self._ask("GET", f"{_SCHEMAS}/{quote(name, safe='')}", absent=True) is None:
            wanted = {"name": self._config.schema_, "catalog_name": self._config.name}
            self._ask("POST", _SCHEMAS, wanted, exists=True)

    def entries(self) -> dict[str, Found]:
        """All tables of the schema, page by page, each with what is known about it."""
        query = {
            "catalog_name": self._config.name,
            "schema_name": self._config.schema_,
            "max_results": str(_PAGE),
        }
        found: dict[str, Found] = {}
        for _ in range(_MOST_PAGES):
            page = self._ask("GET", _TABLES, query=query, absent=True) or {}
            for table in page.get("tables") or ():
                name = str(table.get("name", "")).lower()
                found[name] = _found(table)
                self._ids[name] = str(table.get("table_id") or "")
            token = page.get("next_page_token")
            if not token:
                break
            query = query | {"page_token": str(token)}
        return found

    def create(self, entry: Entry) -> None:
        """Add an external table."""
        made = self._ask("POST", _TABLES, self._described(entry))
        self._ids[entry.name.lower()] = str((made or {}).get("table_id") or "")

    def update(self, entry: Entry) -> None:
        """Change columns and comments, or make the entry again where nothing would be lost."""
        known = self._ask("GET", f"{_TABLES}/{self._path_of(entry.name)}", absent=True)
        # a listing need not have all that is known about a table
        if known is not None and _is_current(known, self._described(entry)):
            return
        if self._has_updates():
            self._change(entry)
            return
        name = self._path_of(entry.name)
        held = self._ask("GET", f"/permissions/table/{name}", absent=True)
        if held is None or held.get("privilege_assignments"):
            raise CatalogError(
                f"the columns of {entry.name} in the catalog are those of an earlier version",
                where=f"{'.'.join(self._config.names)}.{entry.name}",
                evidence="the server cannot change them, and grants would be lost with the entry",
                next_step="on Databricks: MSCK REPAIR TABLE ... SYNC METADATA; readers of Delta "
                "tables have the new columns already",
            )
        self.drop(entry.name)
        self.create(entry)

    def drop(self, name: str) -> None:
        """Delete an entry, if it is that of an external table."""
        known = self._ask("GET", f"{_TABLES}/{self._path_of(name)}", absent=True)
        if known is None:
            return
        if known.get("table_type") != "EXTERNAL":
            raise CatalogError(
                f"{name} is no external table: deleting it would delete its files",
                where=".".join((*self._config.names, name)),
                evidence=f"table_type {str(known.get('table_type'))[:40]}",
                next_step="look at it in the catalog",
            )
        self._ask("DELETE", f"{_TABLES}/{self._path_of(name)}", absent=True)

    def close(self) -> None:
        """Let go of all connections."""
        self._transport.close()

    def _path_of(self, table: str) -> str:
        return quote(".".join((*self._config.names, table)), safe="")

    def _described(self, entry: Entry) -> dict[str, Any]:
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
        """Whether the server has the API for Delta clients; asked once."""
        if self._can_change is None:
            query = {"catalog": self._config.name, "protocol-versions": "1.0"}
            try:
                told = self._ask("GET", "/delta/v1/config", query=query, absent=True)
            except CatalogUnavailableError:
                raise
            except CatalogError:
                # a server that does not know the address may say so in its own way
                told = None
            endpoints = (told or {}).get("endpoints") or ()
            wanted = "POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"
            self._can_change = wanted in endpoints
        return self._can_change

    def _change(self, entry: Entry) -> None:
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
        """One question; None where the answer is that there is none, or one already."""
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
                next_step="bring the catalog back, or correct lake.catalog: it is tried again",
            ) from None
        try:
            told = json.loads(answer.body or b"{}")
        except (ValueError, RecursionError):
            told = None
        if 200 <= answer.status < 300 and isinstance(told, dict):
            return told
        said = told if isinstance(told, dict) else {}
        code = str(said.get("error_code") or "")
        if (absent and answer.status == 404) or (exists and code in _EXISTS):
            return None
        words = str(said.get("message") or "it is not an answer of Unity Catalog")
        kind = CatalogUnavailableError if answer.is_busy else CatalogError
        raise kind(
            "the catalog refused a request" if answer.status >= 400 else "this is no catalog",
            where=where,
            evidence=self._transport.shown(f"{answer.status} {code} {words}"[:400]),
            next_step=_NEXT_STEPS.get(answer.status, "fix what it says: it is tried again"),
        )


_NEXT_STEPS = {
    401: "check lake.catalog.token",
    403: "grant USE CATALOG, USE SCHEMA and CREATE TABLE, and CREATE EXTERNAL TABLE on the "
    "location: it is tried again",
    404: "check lake.catalog.url and name: the catalog itself is not made here",
}


def _found(table: Mapping[str, Any]) -> Found:
    properties = table.get("properties") or {}
    place = table.get("storage_location") if table.get("table_type") == "EXTERNAL" else None
    return Found(place, properties.get(FINGERPRINT))


def _is_current(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether an entry has the columns and comments already, with or without a fingerprint."""
    if (known.get("properties") or {}).get(FINGERPRINT) == wanted["properties"][FINGERPRINT]:
        return True
    return _told(known) == _told(wanted)


def _told(table: Mapping[str, Any]) -> list[object]:
    columns = (
        (c.get("name"), str(c.get("type_text") or "").lower(), c.get("comment") or "")
        for c in table.get("columns") or ()
    )
    return [table.get("comment") or "", *columns]


def _column(field: Field, position: int, partition: int | None) -> dict[str, Any]:
    spelled = field["type"]
    told: dict[str, Any] = {
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
        told |= {"type_precision": int(precision), "type_scale": int(scale)}
    return told if partition is None else told | {"partition_index": partition}


def _type_name(spelled: object) -> str:
    if isinstance(spelled, str):
        plain = spelled.partition("(")[0]
        return "INT" if plain == "integer" else plain.upper()
    return str(spelled["type"]).upper() if isinstance(spelled, dict) else "STRING"


def _comment(field: Field) -> dict[str, Any]:
    """Of what a log keeps with a column, what readers understand."""
    text = field["metadata"].get("comment")
    return {"comment": text} if text else {}


def _struct(fields: tuple[Field, ...]) -> dict[str, Any]:
    """Columns as the API for Delta clients spells them: keys have dashes."""
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
