"""`run --show-rows` prints the newest rows of what a batch wrote, bounded, and never ends a run."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from rich.console import Console

from distributary.cli import run as run_command
from distributary.cli.command import live
from distributary.cli.command.batch_rows import BatchRows
from distributary.cli.command.live import plain_lines, watched
from distributary.cli.command.output import Output
from distributary.config.load import load_text
from distributary.engine.loop import RunSummary
from distributary.engine.pipeline import Pipeline
from distributary.model.manifest import Counts
from distributary.observe.events import BatchSettled, EventBus, TableWritten
from tests.cli.conftest import Cli

FILE = """
name: games
source: {type: delta, path: ./lake/wrapper, value: wrapper}
registry: {path: ./schemas}
payload: {format: protobuf}
tables: {each: 'silver_{type}'}
lake: {path: ./lake}
"""
Runs = Callable[..., None]


@pytest.fixture
def runs(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """A run that does nothing but settle batches."""
    (own_folder / "games.yaml").write_text(FILE)

    def with_(*batches: BatchSettled) -> None:
        def run(pipeline: Pipeline, **_: object) -> RunSummary:
            for each in batches:
                pipeline.bus.publish(each)
            return RunSummary("games", stopped="done", batches=len(batches))

        monkeypatch.setattr(run_command, "_begin_spark", lambda *a: (None, None))
        monkeypatch.setattr(live, "start_spark", lambda *a, **k: nullcontext())
        monkeypatch.setattr(Pipeline, "run", run)

    return with_


def append(lake: Path, table: str, batch: int, **columns: Any) -> TableWritten:
    rows = pa.table(columns)
    rows = rows.append_column("_batch", pa.array([batch] * len(rows), pa.int64()))
    rows = rows.append_column("_offset", pa.array(range(len(rows)), pa.int64()))
    write_deltalake(str(lake / table), rows, mode="append")
    return written(table, rows=len(rows), version=batch)


def written(table: str, *, role: str = "each", rows: int = 1, **more: Any) -> TableWritten:
    facts = {"bytes": 1, "files": 1, "outcome": "published", "version": 0} | more
    return TableWritten(table, role, rows, **facts)


def settled(batch: int, *tables: TableWritten) -> BatchSettled:
    rows = sum(table.rows for table in tables)
    return BatchSettled(
        pipeline="games",
        batch=batch,
        counts=Counts(rows, rows),
        rows=rows,
        tables=len(tables),
        seconds=1.0,
        written=tables,
    )


def test_each_batch_is_followed_by_the_newest_rows_of_what_it_wrote(
    cli: Cli, runs: Runs, own_folder: Path
) -> None:
    lake = own_folder / "lake"
    first = append(lake, "silver_go", 0, move=[f"a{n}" for n in range(5)])
    second = append(lake, "silver_go", 1, move=["z9"])
    runs(settled(0, first), settled(1, second))
    lines = cli("run", "games.yaml", "--show-rows", 3).out.splitlines()
    starts = [line.split()[0] for line in lines]
    # the table has six rows, but the second batch has added one
    shown = ["batch", "silver_go", "move", "z9", "a4", "a3", "batch", "silver_go", "move", "z9"]
    assert starts[:10] == shown
    assert lines[1] == "silver_go  batch 0, 3 newest rows"
    assert lines[7] == "silver_go  batch 1, 1 newest row"


def test_a_whole_run_shows_its_tables_and_dead_letters(
    cli: Cli, own_folder: Path, monkeypatch: pytest.MonkeyPatch, tasks: SparkSession
) -> None:
    folder = own_folder / "in" / "orders"
    folder.mkdir(parents=True)
    (folder / "1.csv").write_text("id,amount\n1,1.5\n2\n3,2.5\n")
    (own_folder / "plain.yaml").write_text(
        """
name: plain
source: {type: files, path: ./in, format: csv, settle: 0s}
tables: {each: "silver_{type}"}
lake: {path: ./lake}
"""
    )
    monkeypatch.setattr(run_command, "_begin_spark", lambda *a: (None, None))
    monkeypatch.setattr(live, "start_spark", lambda *a, **k: nullcontext(tasks))
    told = cli("run", "plain.yaml", "--show-rows", 5, "--json")
    assert told.code == 0, told.err
    shown = {each["table"]: each["rows"] for each in told.json["shown"]}
    assert [row["amount"] for row in shown["silver_orders"]] == [2.5, 1.5]
    assert [row["error_code"] for row in shown["dead_letters"]] == ["PAYLOAD_MISMATCH"]
    (folder / "2.csv").write_text("id,amount\n4,9.5\n")
    lines = cli("run", "plain.yaml", "--show-rows", 5).out.splitlines()
    at = lines.index("silver_orders  batch 1, 1 newest row")
    assert any(line.startswith("batch 1 ") for line in lines[:at])
    assert "9.5" in lines[at + 2]


def test_without_the_option_no_table_is_read(cli: Cli, runs: Runs) -> None:
    runs(settled(0, written("silver_go")))
    told = cli("run", "games.yaml")
    assert (told.code, "silver_go" in told.out + told.err) == (0, False)
    assert cli("run", "games.yaml", "--json").json["shown"] is None


def test_rows_for_programs_are_in_the_one_document(cli: Cli, runs: Runs, own_folder: Path) -> None:
    raw = b"\x00" * 10_000
    first = append(own_folder / "lake", "silver_go", 0, raw=[raw, b"\x01"])
    runs(settled(0, first))
    (shown,) = cli("run", "games.yaml", "--show-rows", 2, "--json").json["shown"]
    assert (shown["batch"], shown["table"]) == (0, "silver_go")
    assert shown["columns"][0] == {"name": "raw", "type": "binary"}
    assert [row["_offset"] for row in shown["rows"]] == [1, 0]
    assert shown["rows"][0]["raw"] == "01"
    assert len(shown["rows"][1]["raw"]) == 1000


def test_the_document_keeps_the_last_tables_only(own_folder: Path) -> None:
    table = append(own_folder / "lake", "silver_go", 0, move=["e4"])
    out = Output(as_json=True, stdout=io.StringIO())
    rows = BatchRows(load_text(FILE).config, out, count=1, on_closed=lambda: None)
    for batch in range(120):
        rows(settled(batch, table))
    assert [shown["batch"] for shown in rows.document] == list(range(20, 120))


def test_values_and_names_from_outside_reach_no_terminal(
    cli: Cli, runs: Runs, own_folder: Path
) -> None:
    columns = {"\x1b[31mname": ["\x1b[2J\n" + "x" * 5000]}
    runs(settled(0, append(own_folder / "lake", "silver_go", 0, **columns)))
    told = cli("run", "games.yaml", "--show-rows", 1)
    assert "\x1b" not in told.out + told.err
    assert max(map(len, told.out.splitlines())) < 200


def test_of_many_tables_ten_are_shown(cli: Cli, runs: Runs, own_folder: Path) -> None:
    tables = [append(own_folder / "lake", f"silver_{n}", 0, move=["e4"]) for n in range(12)]
    runs(settled(0, *tables))
    lines = cli("run", "games.yaml", "--show-rows", 1).out.splitlines()
    assert sum("newest row" in line for line in lines) == 10
    assert "and 2 more tables" in lines


def test_a_table_that_cannot_be_read_ends_no_run(cli: Cli, runs: Runs, own_folder: Path) -> None:
    there = append(own_folder / "lake", "silver_go", 0, move=["e4"])
    append(own_folder / "lake", "silver_chess", 0, move=["e4"])
    shutil.rmtree(own_folder / "lake" / "silver_chess")
    runs(settled(0, written("silver_chess"), there))
    told = cli("run", "games.yaml", "--show-rows", 1)
    assert told.code == 0
    assert "rows of silver_chess cannot be shown: " in told.err
    assert "silver_go  batch 0" in told.out


def test_a_batch_shows_nothing_of_tables_that_it_did_not_write(
    cli: Cli, runs: Runs, own_folder: Path
) -> None:
    for name in ("parked", "empty", "made", "missing"):
        append(own_folder / "lake", name, 0, move=["e4"])
    runs(
        settled(
            0,
            written("parked", outcome="parked"),
            written("empty", rows=0),
            written("made", role="merged", rows=0),
            written("missing", role="merged", rows=0, version=None),
        )
    )
    told = cli("run", "games.yaml", "--show-rows", 1)
    assert [line for line in told.out.splitlines() if "newest row" in line] == [
        "made  batch 0, 1 newest row"
    ]
    assert "cannot be shown" not in told.err


def test_nothing_is_read_for_a_quiet_run(cli: Cli, runs: Runs) -> None:
    runs(settled(0, written("silver_go")))
    told = cli("run", "games.yaml", "--show-rows", 1, "-q")
    assert (told.code, told.out, told.err) == (0, "", "")


class Closed(io.StringIO):
    """A pipe whose reader has gone: what could not be written fails each flush, too."""

    pending = False

    def write(self, text: str) -> int:
        self.pending = self.pending or bool(text)
        return len(text)

    def flush(self) -> None:
        if self.pending:
            raise BrokenPipeError


def test_a_reader_who_has_gone_stops_the_run_and_no_batch(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_program(console: Console) -> None:
        raise SystemExit(1)

    # the original replaces the descriptor of this process's output
    monkeypatch.setattr(Console, "on_broken_pipe", end_program)
    tables = [append(own_folder / "lake", name, 0, move=["e4"]) for name in ("a", "b")]
    out, stopped = Output(stdout=Closed()), list[bool]()
    on_closed = partial(stopped.append, True)
    rows = BatchRows(load_text(FILE).config, out, count=1, on_closed=on_closed)
    rows(settled(0, *tables))
    assert stopped == [True, True]
    say = plain_lines(out, on_closed)
    say("batch 1")
    assert len(stopped) == 3


@pytest.mark.parametrize("count", ["0", "101", "all"])
def test_a_number_of_rows_has_bounds(cli: Cli, runs: Runs, count: str) -> None:
    runs()
    assert cli("run", "games.yaml", "--show-rows", count).code == 2


@pytest.mark.parametrize("as_lines", [True, False])
def test_rows_stand_between_lines_in_a_terminal_too(as_lines: bool) -> None:
    stream, bus = io.StringIO(), EventBus()
    out = Output(stdout=stream)
    out.paper.fancy = True
    call: Any = SimpleNamespace(out=out)
    pipeline: Any = SimpleNamespace(config=SimpleNamespace(name="games"), bus=bus, stop=None)
    pipeline.stop = SimpleNamespace(set=lambda: None)
    run: Any = SimpleNamespace()
    with watched(call, pipeline, run, trigger="available_now", as_lines=as_lines):
        bus.publish(settled(7, written("silver_go")))
    is_line = stream.getvalue().startswith("batch 7  1 row  ")
    assert is_line is as_lines
