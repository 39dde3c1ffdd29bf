"""Tables of a real PostgreSQL, followed by the real connector, and the lake that they feed."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from distributary.engine.pipeline import Pipeline
from distributary_lab.services.services import Services
from tests.services.debezium import Debezium
from tests.services.postgres import Postgres
from tests.services.shared import unique
from tests.waiting import eventually

TABLES = {
    "orders": ("id", "customer", "big", "amount", "at", "extra", "data"),
    "lines": ("order_id", "no", "qty", "note"),
    "papers": ("id", "big", "n"),
}
"""Tables, and their columns from the beginning."""
LARGE = 3_000
_IDS = range(1, 60)
_MADE = """
create schema {0};
create table {0}.orders (id int primary key, customer text not null, big text,
  amount numeric(12,2), at timestamptz, extra jsonb, data bytea);
alter table {0}.orders alter big set storage external;
create table {0}.lines (order_id int, no int, qty int, note text, primary key (order_id, no));
create table {0}.papers (id int primary key, big text, n int);
alter table {0}.papers alter big set storage external;
alter table {0}.papers replica identity full;
create table {0}.cleared (id int primary key);
create table {0}.marks (id int primary key);
insert into {0}.cleared values (1), (2);
"""


@dataclass
class Shop:
    """A schema of the database, a connector, and a pipeline over its topics."""

    services: Services
    postgres: Postgres
    debezium: Debezium
    root: Path
    payload: str = "{format: json}"
    cdc: str = ""
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns that tables have been given since."""

    def __post_init__(self) -> None:
        # a name that needs no quotes in SQL
        self.schema = unique("shop").replace("-", "").replace("_", "")
        self.name = unique("shop")
        self._marks = 0
        self.postgres.execute(_MADE.format(self.schema))

    def follow(self, settings: dict[str, str]) -> None:
        self.debezium.follow(self.postgres, self.name, schemas=self.schema, settings=settings)

    def execute(self, script: str) -> None:
        self.postgres.execute(f"set search_path to {self.schema}; {script}")

    def change(self, seed: int, count: int) -> None:
        """Random changes, several to a transaction."""
        dice = random.Random(seed)
        lines = [_statement(dice) for _ in range(count)]
        cuts = [lines[i : i + 7] for i in range(0, len(lines), 7)]
        self.execute("\n".join(f"begin; {'; '.join(each)}; commit;" for each in cuts))

    def add_column(self, table: str, name: str, kind: str) -> None:
        self.execute(f"alter table {table} add column {name} {kind}")
        self.extra[table] = (*self.extra.get(table, ()), name)

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    def pipeline(self) -> Pipeline:
        """As anybody would write it; heartbeats and transactions are in topics of the prefix."""
        path = self.root / "shop.yaml"
        path.write_text(
            f"""
name: {self.schema}
source:
  type: kafka
  bootstrap_servers: {self.services.kafka}
  topic_pattern: (__debezium-heartbeat\\.)?{self.name}(\\..*)?
registry: {{url: "{self.services.registry}"}}
payload: {self.payload}
cdc: {{format: debezium, log: true, deletes: hard{self.cdc}}}
tables:
  each: "{{schema}}_{{table}}"
lake: {{path: {self.lake}}}
trigger: continuous
"""
        )
        return Pipeline.load(path)

    def arrived(self) -> None:
        """Wait until the connector has written everything that has happened.

        The last message of one topic says nothing about the others: a producer sends a batch of
        each partition at a time, so a short topic overtakes a long one. The connector's position
        is written down when all messages before it are acknowledged.
        """
        query = "select (pg_current_wal_insert_lsn() - '0/0')::int8 as place"
        place = self.postgres.rows(query)[0]["place"]
        self._marks += 1
        self.execute(f"insert into marks values ({self._marks})")
        topic = f"{self.name}.{self.schema}.marks"
        eventually(lambda: messages(self.services.kafka, topic) >= self._marks, seconds=60)
        eventually(lambda: self._reached() >= place, seconds=60)

    def _reached(self) -> int:
        """Return the place in the log up to which all messages are acknowledged."""
        offsets = [each.get("offset") or {} for each in self.debezium.offsets(self.name)]
        return max((int(offset.get("lsn") or 0) for offset in offsets), default=0)

    def rows(self, table: str) -> list[dict[str, Any]]:
        path = self.lake / f"{self.schema}_{table}"
        found: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
        return found

    def letters(self) -> list[dict[str, Any]]:
        path = self.lake / "dead_letters"
        return DeltaTable(str(path)).to_pyarrow_table().to_pylist() if path.exists() else []

    def assert_true(self) -> int:
        """The merged tables are the tables of the database; how many rows were compared."""
        compared = 0
        for table, first in TABLES.items():
            names = (*first, *self.extra.get(table, ()))
            listed = ", ".join(f"{n}::text" if n in _AS_TEXT else n for n in names)
            there = self.postgres.rows(f"select {listed} from {self.schema}.{table}")
            expected = Counter(_plain(row, names) for row in there)
            found = Counter(_plain(row, names) for row in self.rows(table))
            # pytest would take minutes to lay out how such long texts differ
            wrong = [each[:400] for each in ((expected - found) + (found - expected)).elements()]
            assert not wrong, (table, len(wrong), sorted(wrong)[:6])
            compared += len(there)
        return compared


_AS_TEXT = ("amount", "extra", "data", "at")


def _plain(row: dict[str, Any], names: tuple[str, ...]) -> str:
    """Equal for equal rows, whether values are typed or what JSON has instead of them."""
    told = {"amount": _amount, "at": _moment, "extra": json.loads, "data": _hex}
    values = {n: row.get(n) for n in names}
    plain = {n: v if v is None or n not in told else told[n](v) for n, v in values.items()}
    plain["big"] = f"{len(row['big'])}{row['big'][0]}" if row.get("big") else None
    return json.dumps(plain, sort_keys=True)


def _amount(value: Any) -> str:
    return str(Decimal(value))


def _moment(value: Any) -> str:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return moment.astimezone(UTC).isoformat()


def _hex(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    text = str(value)
    return text[2:] if text.startswith("\\x") else base64.b64decode(text).hex()


def _statement(dice: random.Random) -> str:
    id_, other = dice.choice(_IDS), dice.choice(_IDS)
    big = f"repeat('{dice.choice('abc')}', {LARGE})"
    moment = f"'2024-02-29 12:00:{dice.randint(0, 59):02}.{dice.randint(0, 999999):06}+01'"
    amount = f"{dice.randint(-(10**9), 10**9)}::numeric / 100"
    return dice.choice(
        [
            "insert into orders (id, customer, big, amount, at, extra, data) values"
            f" ({id_}, 'Zoë {dice.random()}', {big}, {amount}, {moment},"
            f""" '{{"n": {dice.randint(0, 9)}}}', '\\x00ff{dice.randint(16, 255):x}')"""
            " on conflict do nothing",
            f"update orders set amount = {amount}, at = null where id = {id_}",
            f"update orders set big = {big} where id = {id_}",
            f"update orders set big = null, data = null, extra = null where id = {id_}",
            # the large value is not sent with the new key
            f"update orders set id = {other} where id = {id_} and not exists"
            f" (select 1 from orders where id = {other})",
            f"delete from orders where id = {id_}",
            f"insert into lines (order_id, no, qty) values ({id_}, {other % 9}, {other})"
            " on conflict (order_id, no) do update set qty = excluded.qty",
            f"update lines a set no = no + 10, note = 'moved' where order_id = {id_} and no < 10"
            " and not exists (select 1 from lines where (order_id, no) = (a.order_id, a.no + 10))",
            f"delete from lines where order_id = {id_}",
            f"insert into papers values ({id_}, {big}, 1) on conflict (id) do update set n = 2",
            f"update papers set id = {other} where id = {id_} and not exists"
            f" (select 1 from papers where id = {other})",
        ]
    )


def messages(kafka: str, topic: str) -> int:
    """How many a topic has, which may not be there yet."""
    if topic not in AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics:
        return 0
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "none"})
    try:
        first, last = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    finally:
        consumer.close()
    return int(last - first)
