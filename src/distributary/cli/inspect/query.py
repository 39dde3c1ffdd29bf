"""`query` and `head`: rows of the lake's tables, asked for in SQL or by a table's name."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from distributary.cli.command.lakes import find_lake, find_table
from distributary.cli.command.output import counted
from distributary.cli.command.row_output import WIDEST, cell_text, draw_rows, json_rows
from distributary.cli.command.verb import (
    LOOK,
    CutOption,
    FileOption,
    Invocation,
    LakeOption,
    TableArgument,
    argument,
    option,
    single,
    verb,
)

if TYPE_CHECKING:
    from distributary.errors import DistributaryError
    from distributary.operations.query import QueryLimits, Questions, ResultColumn

app = single(LOOK)

_MOST_SHOWN = 1000
_PROMPT, _GOES_ON = "sql> ", "...> "
_LEAVES = frozenset({"exit", "quit", "\\q", ".quit", ".exit"})

Width = Annotated[
    int | None,
    option(
        "--width",
        "The longest value to print, in characters; 60 in a table, no limit in --json and --csv.",
        metavar="CHARACTERS",
        min=1,
    ),
]
Csv = Annotated[bool, option("--csv", "Print comma-separated values with a header.")]
Timeout = Annotated[
    str, option("--timeout", "The longest time that a statement may take.", metavar="DURATION")
]
Memory = Annotated[str, option("--memory", "The memory that a statement may use.", metavar="SIZE")]


@verb(
    app,
    'query "select type, count(*) from bronze_events group by 1" --lake distributary-demo',
    'query "show tables" --lake distributary-demo --csv',
    'query "select * from dead_letters" --lake distributary-demo --parquet letters.parquet',
    'query "select count(*) from bronze_events" --as-of 0',
)
def query(
    call: Invocation,
    sql: Annotated[
        str | None,
        argument(
            "One SELECT statement; by default read from standard input or a prompt.",
            metavar="SQL",
        ),
    ] = None,
    as_csv: Csv = False,
    parquet: Annotated[
        Path | None,
        option(
            "--parquet",
            "Write the rows, with their types, to this Parquet file in place of printing them.",
            metavar="FILE",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        option(
            "--limit -n",
            "The largest number of rows; 0 for all. By default 1,000, or all with --csv and "
            "--parquet.",
            metavar="ROWS",
            min=0,
        ),
    ] = None,
    timeout: Timeout = "60s",
    memory: Memory = "2GiB",
    width: Width = None,
    as_of: CutOption = None,
    lake: LakeOption = None,
    file: FileOption = None,
) -> None:
    """Query the tables in SQL, by their names. It only reads, and needs no JVM.

    All tables are read at one cut: each has the same settled batches.
    """
    from distributary.operations.query import Questions

    shape = row_shape(call, as_csv, width)
    if parquet is not None and (as_csv or width is not None):
        raise call.usage("--parquet excludes --csv and --width.")
    bounds = _bounds(call, limit, timeout, memory, unlimited=as_csv or parquet is not None)
    found = find_lake(call, lake, file)
    questions = Questions(found.path, as_of=as_of, pipeline=found.pipeline)
    if sql is None and sys.stdin.isatty() and parquet is None:
        _converse(call, questions, bounds, shape)
        return
    if parquet is not None:
        _write(call, questions, sys.stdin.read() if sql is None else sql, bounds, parquet)
        return
    _answer(call, questions, sys.stdin.read() if sql is None else sql, bounds, shape)


@verb(app, "head bronze_events --lake distributary-demo", "head bronze_events -n 3 --json")
def head(
    call: Invocation,
    table: TableArgument,
    count: Annotated[
        int, option("--rows -n", "Number of rows.", metavar="ROWS", min=1, max=_MOST_SHOWN)
    ] = 10,
    as_csv: Csv = False,
    width: Width = None,
    as_of: CutOption = None,
    lake: LakeOption = None,
    file: FileOption = None,
) -> None:
    """Show the newest rows of a table, the newest first."""
    from distributary.operations.query import Questions, ResultColumn, newest

    shape = row_shape(call, as_csv, width)
    found = find_lake(call, lake, file)
    questions = Questions(found.path, as_of=as_of, pipeline=found.pipeline)
    name = table.casefold()
    if name not in questions.places:
        # find the table of a type, or raise an error that suggests similar names
        name = find_table(found.ledger().tables(schema_ids=False), table).table.casefold()
    opened = questions.open(name)
    rows = newest(opened, count)
    columns = tuple(ResultColumn(field.name, str(field.type)) for field in rows.schema)
    about = {"table": questions.places[name][0], "table_version": opened.version}
    show_rows(call, columns, row_values(rows.to_pydict().values()), shape, about)


@dataclass(frozen=True, slots=True)
class RowShape:
    """How rows are to be printed."""

    as_csv: bool
    width: int | None


def row_shape(call: Invocation, as_csv: bool, width: int | None) -> RowShape:
    """Return the shape that the options ask for."""
    if as_csv and call.out.is_json:
        raise call.usage("--csv and --json exclude each other.")
    return RowShape(as_csv, width)


def row_values(columns: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Return the rows of columns of equal length."""
    return zip(*columns, strict=True)


def _bounds(
    call: Invocation, limit: int | None, timeout: str, memory: str, *, unlimited: bool
) -> QueryLimits:
    from distributary.config.base import parse_size
    from distributary.operations.query import QueryLimits

    try:
        size = parse_size(memory)
    except ValueError as error:
        raise call.usage(f"--memory {error}.") from None
    usual = None if unlimited else _MOST_SHOWN
    rows = usual if limit is None else limit or None
    return QueryLimits(seconds=call.seconds("--timeout", timeout), memory=size, rows=rows)


def _ending(call: Invocation) -> Callable[[DistributaryError], None]:
    """Return a function that ends the process with an error."""
    from distributary.cli.command.log_file import report

    def end(error: DistributaryError) -> None:
        # only the end of the process stops the engine; statements only read, so nothing stays half
        # done
        report(call.out, error, call.log)
        call.out.stdout.flush()
        os._exit(error.exit_code)

    return end


def _write(
    call: Invocation, questions: Questions, sql: str, bounds: QueryLimits, file: Path
) -> None:
    """Write the rows of an answer to a Parquet file."""
    with questions.ask(sql, bounds, overdue=_ending(call)) as answer:
        rows = answer.write(file)
        data = {"file": str(file), "rows": rows, "more": answer.more, "columns": answer.columns}
        more = ", and there are more" if answer.more else ""
        text = f"wrote {counted(rows, 'row')} to {file}{more}"
        call.out.show(data, lambda paper: paper.line(text))


def _answer(
    call: Invocation, questions: Questions, sql: str, bounds: QueryLimits, shape: RowShape
) -> None:
    with questions.ask(sql, bounds, overdue=_ending(call)) as answer:
        show_rows(call, answer.columns, answer.rows(), shape, {}, lambda: {"more": answer.more})
        if answer.more and not call.out.is_json:
            call.out.note(
                f"only the first {counted(bounds.rows or 0, 'row')}: use --limit for more"
            )


def show_rows(
    call: Invocation,
    columns: Sequence[ResultColumn],
    rows: Iterable[Sequence[Any]],
    shape: RowShape,
    about: Mapping[str, Any],
    after: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Print rows in the chosen form; `after` returns a note once all rows were taken."""
    if shape.as_csv:
        written = csv.writer(call.out.stdout, lineterminator="\n")
        written.writerow([column.name for column in columns])
        for row in rows:
            written.writerow([cell_text(value, shape.width) for value in row])
        call.out.stdout.flush()
    elif call.out.is_json:
        named = json_rows(columns, rows, shape.width)
        data = {**about, "columns": columns, "rows": named, **after()}
        call.out.show(data, lambda paper: None)
    else:
        width = shape.width or WIDEST
        shown = [[cell_text(value, width) for value in row] for row in rows]
        call.out.show({}, lambda paper: draw_rows(paper, columns, shown))


# The interactive prompt.


def _converse(call: Invocation, questions: Questions, bounds: QueryLimits, shape: RowShape) -> None:
    """Read and answer statements, each up to its semicolon, until the end of input."""
    from distributary.cli.command.log_file import report
    from distributary.errors import DistributaryError

    with suppress(ImportError):
        # this import adds arrow keys and history to the prompt
        import readline  # noqa: F401
    tables = counted(len(questions.places), "table")
    call.out.note(f"{tables}; end a statement with ;  and leave with Ctrl-D. Try: show tables;")
    for sql in _statements(call):
        try:
            _answer(call, questions, sql, bounds, shape)
        except DistributaryError as error:
            report(call.out, error, call.log)
        except KeyboardInterrupt:
            call.out.note("stopped")


def _statements(call: Invocation) -> Iterator[str]:
    lines: list[str] = []
    while True:
        call.out.margin.console.file.write(_GOES_ON if lines else _PROMPT)
        call.out.margin.console.file.flush()
        try:
            line = input()
        except EOFError:
            call.out.margin.line("")
            return
        if not lines and line.strip().lower().rstrip(";") in _LEAVES:
            return
        lines = [*lines, line] if lines or line.strip() else []
        if line.rstrip().endswith(";"):
            yield "\n".join(lines)
            lines = []
