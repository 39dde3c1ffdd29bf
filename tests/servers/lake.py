"""The lake that a database feeds: a pipeline in processes of its own, and what its tables hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pyarrow.dataset as ds
from confluent_kafka import OFFSET_END, Consumer, TopicPartition
from deltalake import DeltaTable

from distributary.engine.kill_points import KILL, KillPoint
from distributary_lab.services.services import Services
from tests.servers.databases import COLUMNS, KEYS, Database
from tests.waiting import eventually

_MOST_SECONDS = 1800
_PROGRAM = Path(sys.executable).with_name("distributary")
_RUN = """
import json, sys
from distributary.engine.pipeline import Pipeline
from distributary.observe.events import TableParked
def say(event):
    if isinstance(event, TableParked):
        print(json.dumps([event.table, event.error]), flush=True)
pipeline = Pipeline.load(sys.argv[1])
pipeline.bus.subscribe(say)
summary = pipeline.run()
assert summary.counts.balanced
sys.exit(1 if summary.still_parked.tables else 0)
"""


@dataclass
class Lake:
    """A pipeline over the topics of a database's connector."""

    services: Services
    database: Database
    root: Path
    batch: int = 250_000
    """Records of a batch at most."""
    settings: str = ", history: true"
    answered: list[tuple[str, str]] = field(default_factory=list)
    """What an operator had to say: the table and the answer."""

    def __post_init__(self) -> None:
        self.file = self.root / "shop.yaml"
        self.file.write_text(
            f"""
name: {self.database.schema}
source:
  type: kafka
  bootstrap_servers: {self.services.kafka}
  topic_pattern: {self.database.name}\\..*
  max_records_per_batch: {self.batch}
payload: {{format: json}}
cdc: {{format: debezium, log: true{self.settings}}}
tables: {{each: "{{table}}"}}
lake: {{path: {self.root / "lake"}}}
spark: {{master: 'local[2]', driver_memory: 1g}}
trigger: available_now
"""
        )

    def arrived(self) -> None:
        """Wait until the connector has written all that has happened."""
        value = self.database.touch()
        for table in KEYS:
            eventually(
                lambda table=table: self._last(table) == value,  # type: ignore[misc]
                seconds=_MOST_SECONDS,
            )

    def _last(self, table: str) -> Any:
        """Return the value of the row that is changed last, if that is the end of the topic."""
        topic = f"{self.database.name}.{self.database.schema}.{table}"
        consumer = Consumer({"bootstrap.servers": self.services.kafka, "group.id": "none"})
        try:
            place = TopicPartition(topic, 0, OFFSET_END)
            first, last = consumer.get_watermark_offsets(place, timeout=10)
            if last <= first:
                return None
            consumer.assign([TopicPartition(topic, 0, last - 1)])
            message = consumer.poll(10)
        finally:
            consumer.close()
        if message is None or message.error() or not message.value():
            return None
        row = json.loads(message.value()).get("after") or {}
        return row.get(COLUMNS[table][2]) if not any(row[k] for k in KEYS[table]) else None

    def events(self) -> int:
        """Return how many events the logs have."""
        logs = [DeltaTable(str(self.root / "lake" / f"{table}_log")) for table in KEYS]
        return sum(log.to_pyarrow_dataset().count_rows() for log in logs)

    def killed_run(self, moment: KillPoint) -> None:
        """Run until the process kills itself at a moment of a batch, or has read everything."""
        code, _ = self._run({KILL: str(moment)})
        assert code in (-signal.SIGKILL, 0, 1), code

    def run(self) -> None:
        """Read everything; where a source goes back without a clear reason, answer for it."""
        code, parked = self._run({})
        for table, error in parked.items():
            assert "SOURCE_WENT_BACK" in error or "goes back in its log" in error, error
            answer = "replaced"
            self.answered.append((table, answer))
            self._command("resume", table, "--source-was", answer)
        assert parked or code == 0, code

    def _run(self, variables: dict[str, str]) -> tuple[int, dict[str, str]]:
        log = (self.root / "run.log").open("a")
        with (
            log,
            subprocess.Popen(
                [sys.executable, "-c", _RUN, str(self.file)],
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            output, _ = process.communicate(timeout=_MOST_SECONDS)
        _wait_until_gone(process.pid)
        parked = dict(json.loads(line) for line in output.splitlines() if line.startswith("["))
        return process.returncode, parked

    def _command(self, *words: str, codes: Sequence[int] = (0,)) -> str:
        place = ("--lake", str(self.root / "lake"))
        ended = subprocess.run(
            [str(_PROGRAM), *words, *place],
            env=os.environ | {"SHOP_URL": self.database.url},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode in codes, ended.stdout + ended.stderr
        return ended.stdout

    def by_source(self) -> list[str]:
        """Return what `verify --source` finds to differ from the database."""
        words = ("verify", *KEYS, "--source", "${SHOP_URL}", "--json", "--wait", "120s")
        answer = json.loads(self._command(*words, codes=(0, 1)))
        found = []
        for table in answer["tables"]:
            counts = {
                name: table[name]
                for name in ("missing", "extra", "different", "unlike_log", "unclear")
                if table[name]
            }
            if counts or not table["agrees"]:
                found.append(f"verify --source: {table['table']} {counts} {table['differences']}")
        assert answer["agree"] == (not found), answer
        return found

    def rows(self, table: str, names: Sequence[str]) -> pa.Table:
        """Read columns of a merged table, or of the rows that a history says are current."""
        where = ds.field("_current") if table.endswith("_history") else None
        source = DeltaTable(str(self.root / "lake" / table)).to_pyarrow_dataset()
        # a column that was added may not have arrived
        known = [name for name in names if name in source.schema.names]
        rows = source.to_table(columns=known, filter=where)
        for name in names:
            if name not in known:
                rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int64()))
        return rows.select(names)

    def differences(self) -> list[str]:
        """Compare all tables with the database, row by row; return what differs."""
        found: list[str] = []
        for table in KEYS:
            names = self.database.names(table)
            histories = [f"{table}_history"] if "history: true" in self.settings else []
            for name in (table, *histories):
                here = self.rows(name, names)
                there = self.database.rows(table, here.schema)
                assert there.num_rows
                found += [f"{name} {row}" for row in unlike(there, here)]
        return found


def unlike(there: pa.Table, here: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows that only one of two tables has, with the side that has them."""
    with duckdb.connect() as connection:
        connection.register("there", there)
        connection.register("here", here)
        return connection.sql(
            "select 'database', * from (from there except all from here) union all "
            "select 'lake', * from (from here except all from there) order by 2, 1"
        ).fetchall()


def _wait_until_gone(session: int) -> None:
    """Wait until the JVM of a killed run has ended, which it does by itself."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(map(_is_of(session), psutil.pids())):
        time.sleep(0.2)


def _is_of(session: int) -> Any:
    def check(pid: int) -> bool:
        try:
            return os.getsid(pid) == session
        except (ProcessLookupError, PermissionError):
            return False

    return check
