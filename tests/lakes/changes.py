"""A folder of change files, a pipeline over it, and the simulator's truth about its lake."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from distributary.engine.kill_points import KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.model.table import Role
from distributary.operations.repair.verify_table import verify_table
from distributary.store import disk
from distributary.store.base import at, introduce
from distributary_lab.simulate.cdc.datastream_files import FileRound, FileStream
from distributary_lab.simulate.cdc.shapes import CdcPlan, TableClaim, interval_text
from tests.decode.datastream_samples import COLUMNS, avro_schema
from tests.source.change_files import MINUTE, avro
from tests.source.s3_server import S3Server

CHANGE_MOMENTS = tuple(m for m in KillPoint if m is not KillPoint.BEFORE_AGGREGATES)
"""The moments that a batch with merged tables comes through, and without aggregates."""
EACH = "{each: '{database}_{table}'}"


@dataclass
class Feed:
    """Change files of a simulated database, round by round, and the lake that they feed."""

    root: Path
    plan: CdcPlan = field(default_factory=CdcPlan)

    def __post_init__(self) -> None:
        self.stream = FileStream(self.plan)
        self._rounds = self.stream.rounds()

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def files(self) -> Path:
        return self.root / "datastream"

    def send_round(self) -> FileRound | None:
        """The files of the next round; None when all were sent."""
        one = next(self._rounds, None)
        for file in one.files if one else ():
            put(self.files / file.path, file.data)
        return one

    def send_all(self) -> None:
        while self.send_round() is not None:
            pass

    def put_events(
        self,
        name: str,
        events: Sequence[Mapping[str, Any]],
        *,
        kind: str = "mysql",
        columns: Mapping[str, Any] = COLUMNS,
    ) -> None:
        """A file of events that a test has made itself."""
        data = avro([dict(each) for each in events], written=avro_schema(kind, columns))
        put(self.files / f"shop_orders/{MINUTE}/{name}.avro", data)

    def write_file(
        self, *, source: str = "", cdc: str = "", tables: str = EACH, extra: str = ""
    ) -> Path:
        kind = "json" if self.plan.format.is_json_file else str(self.plan.format)
        path = self.root / "changes.yaml"
        path.write_text(
            f"""
name: changes
source: {{type: files, path: {self.files}, format: {kind}, settle: 0s{source}}}
cdc: {{format: datastream{cdc}}}
tables: {tables}
lake: {{path: {self.lake}}}
{extra}
"""
        )
        return path

    def pipeline(self, **settings: str) -> Pipeline:
        return Pipeline.load(self.write_file(**settings))

    def rows(self, table: str) -> list[dict[str, Any]]:
        return rows_of(self.lake / table)

    def tables(self, role: Role) -> dict[str, str]:
        """Tables by what they are about, as the ledger has it."""
        known = Pipeline.load(self.root / "changes.yaml").ledger().tables("changes")
        return {t.type: t.table for t in known if t.role == role}

    def assert_true(self, *, backfill: str = "before_cdc", logs: bool = True) -> None:
        """The promise: every event is in its log once, and the tables are what the source is."""
        merged = self.tables(Role.MERGED)
        truth = self.stream.model.truth(backfill=backfill)  # type: ignore[arg-type]
        assert truth
        for claim, expected in truth.items():
            name = merged[claim.text]
            found = self.rows(name) if (self.lake / name / "_delta_log").exists() else []
            self.assert_same_rows(claim, found, expected)
        if logs:
            self.assert_logs_are_complete()

    def assert_same_rows(
        self, claim: TableClaim, found: list[dict[str, Any]], expected: list[dict[str, Any]]
    ) -> None:
        (table,) = (t for t in self.stream.model.tables if t.shape.claim == claim)
        kinds = {name: str(column.carried) for name, column in table.columns.items()}
        there = Counter(as_text(row, kinds, odd=False) for row in found)
        wanted = Counter(as_text(row, kinds, odd=True) for row in expected)
        assert there == wanted, claim

    def assert_logs_are_complete(self) -> None:
        logs = self.tables(Role.LOG)
        counts = {claim: rows_in(self.lake / table) for claim, table in logs.items()}
        assert counts == self.stream.sent().per_table

    def versions(self) -> dict[str, int]:
        """The version of every table in the lake."""
        found = sorted(self.lake.glob("**/_delta_log"))
        own = [path.parent for path in found if "ledger" not in path.parts]
        return {str(path): DeltaTable(str(path)).version() for path in own}


@dataclass
class BucketFeed(Feed):
    """A feed into a bucket, which is looked at in a copy: `lake`."""

    server: S3Server | None = None
    address: str = ""

    def write_file(
        self, *, source: str = "", cdc: str = "", tables: str = EACH, extra: str = ""
    ) -> Path:
        assert self.server is not None
        path = super().write_file(source=source, cdc=cdc, tables=tables, extra=extra)
        told = ", ".join(f'{name}: "{value}"' for name, value in self.server.options.items())
        place = f"lake: {{path: {self.address}, storage_options: {{{told}}}}}"
        path.write_text(path.read_text().replace(f"lake: {{path: {self.lake}}}", place))
        return path

    def assert_true(self, **settings: Any) -> None:
        assert self.server is not None
        # the pipeline may have run in another process
        introduce(self.address, self.server.options)
        shutil.rmtree(self.lake, ignore_errors=True)
        there = at(self.address)
        for file in there.files(recursive=True):
            if not file.name.startswith("_"):
                there.copy(file.name, to=at(self.lake))
        super().assert_true(**settings)

    def assert_verified(self) -> None:
        pipeline = self.pipeline()
        known = [t for t in pipeline.ledger().tables("changes") if t.role == Role.MERGED]
        assert known
        assert all(verify_table(pipeline, table).verified.agrees for table in known)


def put(path: Path, data: bytes) -> None:
    """A file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    disk.replace(path, data, durable=False)


def rows_of(table: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return found


def events_left(lake: Path) -> list[Path]:
    """Files of events that are not merged yet, where no log is kept.

    Their own log may hold a checkpoint: whose turn it is to write one depends on a folder's name.
    """
    found = lake.glob("_distributary/changes/**/*.parquet")
    return [file for file in found if file.parent.name != "_delta_log"]


def rows_in(table: Path) -> int:
    return int(DeltaTable(str(table)).to_pyarrow_dataset().count_rows())


def as_text(row: dict[str, Any], kinds: dict[str, str], *, odd: bool) -> str:
    """Equal for equal rows, whether a value is typed, as Avro keeps it, or text, as JSON does."""
    plain = {}
    for name, kind in kinds.items():
        value = row.get(name if odd else name.replace(" ", "_").replace("-", "_"))
        plain[name] = None if value is None else _plain(value, kind)
    return json.dumps(plain, sort_keys=True, ensure_ascii=False)


def _plain(value: Any, kind: str) -> Any:
    match kind:
        case "decimal" | "number":
            return format(Decimal(str(value)).normalize(), "f")
        case "json":
            return json.loads(value) if isinstance(value, str) else value
        case "bytes":
            return (base64.b64decode(value) if isinstance(value, str) else value).hex()
        case "date":
            return value.isoformat() if isinstance(value, date) else value
        case "datetime" | "timestamp" | "timestamp_tz":
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
            whole = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return whole.astimezone(UTC).isoformat()
        case "time":
            return value.isoformat("microseconds") if isinstance(value, time) else value
        case "time_interval":
            span = timedelta(microseconds=value) if isinstance(value, int) else value
            return interval_text(span) if isinstance(span, timedelta) else span
        case _:
            return value
