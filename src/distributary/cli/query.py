"""`query` and `head`: rows of the lake's tables, asked for in SQL or by a table's name."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from distributary.cli.lakes import find_lake, find_table
from distributary.cli.output import Paper, counted, cut
from distributary.cli.verb import (
    LOOK,
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
    from distributary.operations.query import Bounds, Questions

app = single(LOOK)

_MOST_SHOWN = 1000
_WIDEST = 60
"""Characters of a value where people read it; `--json` and `--csv` have all of it."""
_PROMPT, _GOES_ON = "sql> ", "...> "
_LEAVES = frozenset({"exit", "quit", "\\q", ".quit", ".exit"})

Csv = Annotated[bool, option("--csv", "Print comma-separated values with a header.")]
Timeout = Annotated[str, option("--timeout", "How long an answer may take.", metavar="DURATION")]
Memory = Annotated[str, option("--memory", "How much memory it may take.", metavar="SIZE")]


@verb(
    app,
    'query "select type, count(*) from bronze_events group by 1" --lake distributary-demo',
    'query "show tables" --lake distributary-demo --csv',
)
def query(
    call: Invocation,
    sql: Annotated[
        str | None,
        argument("One SELECT; else standard input, or a prompt in a terminal.", metavar="[SQL]"),
    ] = None,
    as_csv: Csv = False,
    limit: Annotated[
        int | None,
        option(
            "--limit -n",
            "Print at most so many rows; 0 for all. 1,000 when left out, all with --csv.",
            metavar="ROWS",
            min=0,
        ),
    ] = None,
    timeout: Timeout = "60s",
    memory: Memory = "2GiB",
    lake: LakeOption = None,
    file: FileOption = None,
) -> None:
    """Ask the tables in SQL, by their names. It only reads, and needs no JVM."""
    from distributary.operations.query import Questions

    if as_csv and call.out.is_json:
        raise call.usage("--csv and --json exclude each other.")
    bounds = _bounds(call, limit, timeout, memory, unlimited=as_csv)
    found = find_lake(call, lake, file)
    questions = Questions(found.path, options=found.options)
    if sql is None and sys.stdin.isatty():
        _converse(call, questions, bounds, as_csv=as_csv)
        return
    _answer(call, questions, sys.stdin.read() if sql is None else sql, bounds, as_csv=as_csv)


@verb(app, "head bronze_events --lake distributary-demo", "head bronze_events -n 3 --json")
def head(
    call: Invocation,
    table: TableArgument,
    count: Annotated[
        int, option("--rows -n", "How many.", metavar="ROWS", min=1, max=_MOST_SHOWN)
    ] = 10,
    as_csv: Csv = False,
    lake: LakeOption = None,
    file: FileOption = None,
) -> None:
    """The newest rows of a table, the newest first."""
    from distributary.operations.query import Field, Questions, json_value, newest

    if as_csv and call.out.is_json:
        raise call.usage("--csv and --json exclude each other.")
    found = find_lake(call, lake, file)
    questions = Questions(found.path, options=found.options)
    name = table.casefold()
    if name not in questions.places:
        # by its type, or an error that names those that are spelled alike
        name = find_table(found.ledger().tables(schema_ids=False), table).table.casefold()
    opened = questions.open(name)
    rows = newest(opened, count)
    columns = tuple(Field(field.name, str(field.type)) for field in rows.schema)
    if as_csv:
        _write_csv(call, columns, _values(rows.to_pydict().values()))
        return
    data = {
        "table": questions.places[name][0],
        "table_version": opened.version,
        "columns": columns,
        "rows": [{key: json_value(value) for key, value in row.items()} for row in rows.to_pylist()]
        if call.out.is_json
        else [],
    }
    call.out.show(data, lambda paper: _draw(paper, columns, _values(rows.to_pydict().values())))


def _values(columns: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    return zip(*columns, strict=True)


def _bounds(
    call: Invocation, limit: int | None, timeout: str, memory: str, *, unlimited: bool
) -> Bounds:
    from distributary.config.base import parse_size
    from distributary.operations.query import Bounds

    try:
        size = parse_size(memory)
    except ValueError as error:
        raise call.usage(f"--memory {error}.") from None
    usual = None if unlimited else _MOST_SHOWN
    rows = usual if limit is None else limit or None
    return Bounds(seconds=call.seconds("--timeout", timeout), memory=size, rows=rows)


def _answer(
    call: Invocation, questions: Questions, sql: str, bounds: Bounds, *, as_csv: bool
) -> None:
    with questions.ask(sql, bounds) as answer:
        if as_csv:
            _write_csv(call, answer.columns, answer.rows())
        elif call.out.is_json:
            rows = answer.named()
            data = {"columns": answer.columns, "rows": rows, "more": answer.more}
            call.out.show(data, lambda paper: None)
        else:
            shown = list(answer.rows())
            call.out.show({}, lambda paper: _draw(paper, answer.columns, shown))
        if answer.more and not call.out.is_json:
            call.out.note(f"only the first {counted(bounds.rows or 0, 'row')}: --limit says more")


def _draw(paper: Paper, columns: Sequence[Any], rows: Iterable[Sequence[Any]]) -> None:
    shown = [[_text(value) for value in row] for row in rows]
    if paper.fancy and len(columns) * 4 > paper.console.width:
        # a table that no screen is wide enough for: a line for each value
        for number, row in enumerate(shown, 1):
            paper.line(f"row {number}")
            for column, value in zip(columns, row, strict=True):
                paper.row(column.name, value, width=28)
        return
    paper.table([c.name + ">" * _is_number(c.type) for c in columns], shown, indent=0)


def _is_number(type_name: str) -> bool:
    return type_name.startswith(("int", "uint", "float", "double", "decimal", "half"))


def _text(value: Any) -> str:
    text = _whole_text(value)
    return cut(text, _WIDEST)


def _whole_text(value: Any) -> str:
    """A value in one piece: nothing for null, JSON for what has parts."""
    import json

    from distributary.operations.query import json_value

    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return json.dumps(json_value(value), ensure_ascii=False)
    known = json_value(value)
    # what JSON has no word for: infinity, and what is no number
    return "" if value is None else str(value) if known is None else str(known)


def _write_csv(call: Invocation, columns: Sequence[Any], rows: Iterable[Sequence[Any]]) -> None:
    written = csv.writer(call.out.stdout, lineterminator="\n")
    written.writerow([column.name for column in columns])
    for row in rows:
        written.writerow([_whole_text(value) for value in row])
    call.out.stdout.flush()


# A prompt.


def _converse(call: Invocation, questions: Questions, bounds: Bounds, *, as_csv: bool) -> None:
    """Statement after statement, each up to its semicolon, until the end of input."""
    from distributary.cli.logs import report
    from distributary.errors import DistributaryError

    with suppress(ImportError):
        # arrow keys and history, where Python has them
        import readline  # noqa: F401
    tables = counted(len(questions.places), "table")
    call.out.note(f"{tables}; end a statement with ;  and leave with Ctrl-D. Try: show tables;")
    for sql in _statements(call):
        try:
            _answer(call, questions, sql, bounds, as_csv=as_csv)
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
