"""A table of a million rows against its database: what `verify --source` takes, and what it finds.

    python -m benchmarks.proof --databases postgres,mariadb --rows 1000000 --differ 0,10,1000

The lake is a log of the rows as a snapshot brought them, and the table that is merged of it. Then
rows are changed, removed and added in the database alone, and a process of its own compares. It
fails if another number of rows differs than was planted.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from distributary.changes.apply import merge_table
from distributary.changes.merge_order import MergeOrder
from distributary.changes.source.base import Moment, connect
from distributary.changes.source.compare import Comparison
from distributary.changes.source.lake_side import MergedTable
from distributary.config.database import parse_address
from distributary.model.change import CHANGE_COLUMNS, SEQ
from distributary.model.table import Column
from tests.services.mariadb import MariaDB
from tests.services.postgres import DATABASE, USER, Postgres

_PIECE = 250_000
_COLUMNS = (
    Column("id", pa.int64()),
    Column("name", pa.string()),
    Column("qty", pa.decimal128(12, 3)),
    Column("at", pa.int64()),
    Column("doc", pa.string()),
    Column("data", pa.binary()),
)
_BEGAN_US = 1_704_067_200_000_000
_FILLED = {
    "postgres": """
create table items (id bigint primary key, name varchar(60), qty decimal(12,3), at timestamp(3),
  doc jsonb, data bytea);
insert into items select n, 'name ' || n, n + 0.5, timestamp '2024-01-01' + n * interval '1 ms',
  json_build_object('b', n, 'a', json_build_array(1)), convert_to(n::text, 'UTF8')
from generate_series(1, {rows}) n;
""",
    "mariadb": """
create table items (id bigint primary key, name varchar(60), qty decimal(12,3), at datetime(3),
  doc json, data varbinary(20));
insert into items select seq, concat('name ', seq), seq + 0.5,
  timestampadd(microsecond, seq * 1000, '2024-01-01 00:00:00'),
  json_object('b', seq, 'a', json_array(1)), seq from seq_1_to_{rows};
""",
}


@dataclass(frozen=True)
class Figures:
    """What one comparison took and found."""

    database: str
    rows: int
    planted: int
    found: int
    ranges_different: int
    sample: float | None
    cpu_seconds: float
    peak_mb: float
    seconds: float


@contextmanager
def _server(kind: str, folder: Path) -> Iterator[Postgres | MariaDB]:
    with Postgres(folder) if kind == "postgres" else MariaDB(folder) as server:
        yield server


def _url(server: Postgres | MariaDB) -> str:
    scheme, name = ("postgresql", DATABASE) if isinstance(server, Postgres) else ("mariadb", "shop")
    return f"{scheme}://{USER}:{server.password}@127.0.0.1:{server.port}/{name}"


def _execute(server: Postgres | MariaDB, script: str) -> None:
    if isinstance(server, MariaDB):
        server.execute(script, database="shop")
    else:
        server.execute(script)


def _write_lake(folder: Path, rows: int, moment: Moment) -> None:
    """Write the log of a snapshot's rows, and merge it."""
    log = str(folder / "items_log")
    for first in range(1, rows + 1, _PIECE):
        write_deltalake(log, _events(first, min(first + _PIECE, rows + 1), moment), mode="append")
    for number, file in enumerate(sorted((folder / "items_log").glob("*.parquet"))):
        merge_table(_order(folder, number, (str(file),)))


def _order(folder: Path, batch: int, files: tuple[str, ...] = ()) -> MergeOrder:
    return MergeOrder(
        table="items",
        path=str(folder / "items"),
        tombstones=str(folder / "tombstones"),
        files=files,
        columns=_COLUMNS,
        app_id="proof/life1",
        batch=batch,
        now_us=_BEGAN_US,
        log=str(folder / "items_log"),
    )


def _events(first: int, end: int, moment: Moment) -> pa.Table:
    """Build the reads of a snapshot, as Debezium sends them without a schema."""
    ids = np.arange(first, end)
    size, texts = len(ids), pa.array(ids).cast(pa.string())
    a, b, c = moment.low
    place = {"phase": 0, "ts": 0, "a": a, "b": b, "c": c, "half": 1, "tie": "0"}
    thousandths = pa.array(ids * 1000 + 500).cast(pa.decimal128(20, 0))
    qty = pc.multiply(thousandths, pa.scalar(1, pa.decimal128(4, 3)).cast(pa.decimal128(4, 3)))
    values: dict[str, Any] = {
        "_op": pa.repeat("read", size),
        "_deleted": pa.repeat(False, size),
        "_key": pa.array([["id"]] * size, pa.list_(pa.string())),
        "_seq": pa.array([place] * size, SEQ),
        "_source_ts": pa.repeat(moment.at_us, size).cast(pa.timestamp("us", "UTC")),
        "_backfill": pa.repeat(True, size),
        "_uuid": texts,
        "_hash": pa.array(ids),
        "_unchanged": pa.array([[]] * size, pa.list_(pa.string())),
        "_envelope": pa.repeat("{}", size),
        "id": pa.array(ids),
        "name": pc.binary_join_element_wise("name ", texts, ""),
        "qty": pc.divide(qty, pa.scalar(1000, pa.decimal128(4, 0))).cast(pa.decimal128(12, 3)),
        "at": pa.array(ids + _BEGAN_US // 1000),
        "doc": pc.binary_join_element_wise('{"a":[1],"b":', texts, "}", ""),
        "data": texts.cast(pa.binary()),
        "_topic": pa.repeat("items", size),
        "_partition": pa.repeat(pa.scalar(0, pa.int32()), size),
        "_offset": pa.array(ids),
        "_batch": pa.repeat(pa.scalar(first // _PIECE), size),
    }
    types = {column.name: column.type for column in (*CHANGE_COLUMNS, *_COLUMNS)}
    return pa.table(
        {name: value.cast(types.get(name, value.type)) for name, value in values.items()}
    )


def _plant(server: Postgres | MariaDB, rows: int, more: int, before: int) -> None:
    """Have `more` further rows differ: changed, removed and added, spread over the keys."""
    statements = []
    for number in range(before, before + more):
        id_ = 1 + (number * 7_919) % rows
        statements.append(
            (
                f"update items set qty = -1 where id = {id_};",
                f"delete from items where id = {id_};",
                f"insert into items (id, name) values ({rows + 1 + number}, 'new');",
            )[number % 3]
        )
    _execute(server, "\n".join(statements))


def _compare(folder: Path, url: str, sample: float | None) -> dict[str, Any]:
    """Compare in this process, and return what it took."""
    names = (DATABASE, "public", "items") if url.startswith("postgres") else ("shop", "", "items")
    with closing(connect(parse_address(url))) as database:
        merged = MergedTable(str(folder / "items_log"), _order(folder, 0))
        check, wrong, _ = Comparison(merged, database, names, sample=sample).run(patience=10)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "found": check.missing + check.extra + check.different + check.unlike_log,
        "wrong": wrong.count,
        "ranges_different": check.ranges_different,
        "agrees": check.agrees,
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": round(used.ru_maxrss / 1024),
        "seconds": round(check.seconds, 1),
    }


def _measured(kind: str, folder: Path, asked: argparse.Namespace) -> Iterator[Figures]:
    with _server(kind, folder / "server") as server:
        if isinstance(server, MariaDB):
            server.execute("create database shop")
        _execute(server, _FILLED[kind].format(rows=asked.rows))
        with closing(connect(parse_address(_url(server)))) as database:
            _write_lake(folder / "lake", asked.rows, database.open(10))
        planted = 0
        for differ, sample in [*((n, None) for n in asked.differ), (max(asked.differ), 0.05)]:
            _plant(server, asked.rows, differ - planted, planted)
            planted = differ
            place = json.dumps([str(folder / "lake"), _url(server), sample])
            ended = subprocess.run(
                [sys.executable, "-m", "benchmarks.proof", "--compare"],
                input=place,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            answer = json.loads(ended.stdout)
            if sample is None and answer["found"] != planted:
                raise SystemExit(f"{kind}: {planted} rows differ, and {answer['found']} were found")
            names = ("found", "ranges_different", "cpu_seconds", "peak_mb", "seconds")
            yield Figures(
                database=kind,
                rows=asked.rows,
                planted=planted,
                sample=sample,
                **{name: answer[name] for name in names},
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each database, and print a line of JSON for each comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proof", description=__doc__)
    parser.add_argument("--databases", type=lambda text: text.split(","), default=[*_FILLED])
    parser.add_argument("--rows", type=int, default=1_000_000)
    numbers = [0, 10, 1_000]
    parser.add_argument(
        "--differ",
        type=lambda text: sorted(int(each) for each in text.split(",")),
        default=numbers,
        help="how many rows differ, in one comparison after the other",
    )
    parser.add_argument("--compare", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.compare:
        folder, url, sample = json.load(sys.stdin)
        json.dump(_compare(Path(folder), url, sample), sys.stdout)
        return
    for kind in asked.databases:
        with tempfile.TemporaryDirectory(prefix="proof-") as folder:
            for figures in _measured(kind, Path(folder), asked):
                print(json.dumps(asdict(figures)), flush=True)


if __name__ == "__main__":
    main()
