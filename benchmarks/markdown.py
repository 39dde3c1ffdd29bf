"""The figures of a run as tables in the documents: `python -m benchmarks.markdown` writes them.

A document has a block for each table, between `<!-- bench: NAME -->` and `<!-- /bench -->`. Nobody
types a figure there: what a block says is what the kept run found.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.order import Row
from benchmarks.report import RESULTS

ROOT = Path(__file__).resolve().parent.parent
README, GUIDE = "README.md", "docs/howto/tune.md"
DOCUMENTS = (README, GUIDE)
_OWN = "readme.json"
"""The run of the README's figures; until there is one, the README has those of the long run."""
_SPEED = "speed-*.json"
"""Shorter runs, of what was made faster since the long one: their figures have tables of their own,
from the lowest that any of them found to the highest. The tuning guide has their commands.
"""
_KEPT = ("apart.json", "latest.json")
"""Runs whose figures stand in documents: of what both measured, those of the later one here."""
_NONE = "not measured"
_BLOCK = re.compile(r"(<!-- bench: ([a-z]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)

_AIMS = {
    "direct_vs_foreachbatch_200": ("200 tables, against `foreachBatch`", "{:.1f} times as fast"),
    "direct_vs_arrow_floor_200": ("200 tables, against a scan into Arrow", "{:.2f} of its speed"),
    "seconds_1000_vs_10": ("a batch with 1,000 tables, against 10", "{:.2f} times as long"),
    "commit_seconds_1000": ("commits of 1,000 tables", "{:.2f} s a batch"),
    "freshness_p95_5000": ("5,000 records a second, 100 tables: 95 of 100 readable", "in {:.1f} s"),
    "evolution_extra_stages_200": ("a new schema version", "{:.2f} of a stage more"),
    "seconds_10000_commits_vs_100": ("tables with 10,000 commits, against 100", "{:.2f} times"),
    "avro_vs_from_avro_1": ("Avro, one table, against `from_avro`", "{:.1f} times as fast"),
    "avro_vs_from_avro_20": ("Avro, 20 types, against `from_avro`", "{:.1f} times as fast"),
    "merge_vs_spark_merge_1": ("5,000,000 rows, 100,000 changes, against `MERGE`", "{:.1f} times"),
    "merge_vs_spark_merge_20": ("20 tables of changes, against `MERGE`", "{:.1f} times as fast"),
    "merge_vs_spark_merge_100": ("100 tables of changes, against `MERGE`", "{:.1f} times as fast"),
}

_SPEEDS = {
    "direct_vs_arrow_floor_10": ("10 tables, against a scan into Arrow", "{:.2f} of its speed"),
    "direct_vs_arrow_floor_200": ("200 tables, against a scan into Arrow", "{:.2f} of its speed"),
    "direct_vs_arrow_floor_1000": (
        "1,000 tables, against a scan into Arrow",
        "{:.2f} of its speed",
    ),
    "native_vs_connector_10": (
        "reading Kafka in tasks, against Spark's connector",
        "{:.1f} times as fast",
    ),
    "json_vs_from_json_1": ("JSON, one table, against `from_json`", "{:.1f} times as fast"),
    "json_types_vs_from_json_20": ("JSON, 20 types, against `from_json`", "{:.1f} times as fast"),
    "events_per_second_and_core_json": (
        "change data in JSON files, decoded and landed",
        "{:,.0f} events a second and core",
    ),
    "merge_newest_vs_spark_1": (
        "5,000,000 rows, 100,000 changes of the newest tenth, against `MERGE`",
        "{:.1f} times as fast",
    ),
    "merge_even_vs_spark_1": ("the same, spread evenly", "{:.1f} times as fast"),
    "merge_large_vs_table": (
        "the newest of 50,000,000 rows, against 5,000,000",
        "{:.2f} times as long",
    ),
    "exchange_shuffle_vs_disk_200": (
        "200 tables through Spark's shuffle, against files on a disk",
        "{:.2f} of its speed",
    ),
    "first_commit_seconds_20": ("first commit after `run`, 20 tables", "{:.1f} s"),
}
"""The same for the shorter runs."""

_OTHERS = {
    "direct_vs_declarative_20": (
        "20 tables, the whole command, against Spark Declarative Pipelines with 20 flows",
        "{:.1f} times as fast",
    ),
    "web_requests_vs_from_json_1": (
        "the web requests of kafka-delta-ingest, against `from_json`",
        "{:.1f} times as fast",
    ),
    "cpu_1000_vs_10_at_60s": (
        "`freshness: 60s`, 20,000 records a second: CPU of a record with 1,000 tables, against 10",
        "{:.2f} times",
    ),
    "cpu_1s_vs_60s_1000": (
        "1,000 tables: CPU of a record with `freshness: 1s`, against `60s`",
        "{:.1f} times",
    ),
    "files_1s_vs_60s_1000": ("the same: files a minute", "{:.0f} times"),
}
"""Figures that only the README's run has."""

_CORE = {
    "kafka": "small protobuf from Kafka",
    "wide": "protobuf of 2,000 bytes from Kafka",
    "avro": "Avro from Kafka",
    "changes": "changes from files, log and merge",
}


_APART = {"apart": "small protobuf", "apart-changes": "changes from files, log and merge"}
_PLACES = {
    "one-machine": "one machine, a disk",
    "nothing-shared": "two workers, nothing shared, a bucket",
}

_BATCH: Mapping[str, Callable[[Row], str]] = {
    "rows/s": lambda row: _rounded(row["rows_per_second"]),
    "seconds a batch": lambda row: f"{row['seconds_per_batch']:.2f}",
    "stage": lambda row: f"{row['stage_seconds']:.2f}",
    "commits": lambda row: f"{row['publish_seconds']:.2f}",
}
"""Columns of our own batches."""


_MEMORY: Mapping[str, Callable[[Row], str]] = {
    "driver, with its JVM": lambda row: _megabytes(row["driver_bytes"]),
    "Python workers": lambda row: _megabytes(row["worker_bytes"]),
}


def blocks(found: Mapping[str, Any]) -> dict[str, str]:
    """Each table by its name; none without a line."""
    rows: Sequence[Row] = found["rows"]
    tables = {
        "source": _source(found),
        "demux": _demux(_of(rows, "kafka")),
        "wide": _demux(_of(rows, "wide")),
        "aims": _aims([found["ratios"]], {**_AIMS, **_SPEEDS, **_OTHERS}),
        "steps": _steps(_of(rows, "kafka")),
        "sizes": _sizes(_of(rows, "sizes")),
        "freshness": _freshness(_of(rows, "freshness")),
        "changes": _changes(_of(rows, "changes")),
        "age": _age(_of(rows, "age")),
        "cluster": _cluster(_of(rows, "cluster")),
        "apart": _apart([row for suite in _APART for row in _of(rows, suite)]),
        "core": _core([row for suite in _CORE for row in _of(rows, suite)]),
    }
    return {name: text for name, text in tables.items() if text.count("\n") != 1}


def kept(document: str) -> dict[str, str]:
    """Return the tables of the runs that are kept for a document."""
    if document == README:
        run = RESULTS / (_OWN if (RESULTS / _OWN).exists() else "latest.json")
        plot = run.with_suffix(".png").relative_to(ROOT)
        shown = f"![records a second against the number of tables]({plot})"
        return {**blocks(json.loads(run.read_text())), "plot": shown}
    known: dict[str, str] = {}
    for name in _KEPT:
        known |= blocks(json.loads((RESULTS / name).read_text()))
    runs = [json.loads(path.read_text()) for path in RESULTS.glob(_SPEED)]
    runs.sort(key=lambda run: run["date"])
    known["speedsource"] = _sources(runs)
    known["speed"] = _aims([run["ratios"] for run in runs], _SPEEDS)
    return known


def written(text: str, known: Mapping[str, str]) -> str:
    """A document with its blocks as they should be."""
    return _BLOCK.sub(lambda block: f"{block[1]}{known[block[2]]}\n{block[3]}", text)


def stale() -> dict[str, str]:
    """Return the documents that do not say what the runs found, as they should be."""
    texts = {name: (ROOT / name).read_text() for name in DOCUMENTS}
    fresh = {name: written(text, kept(name)) for name, text in texts.items()}
    return {name: text for name, text in fresh.items() if text != texts[name]}


def write() -> None:
    """Write the figures of the kept runs into the documents."""
    for name, text in stale().items():
        (ROOT / name).write_text(text)
        print(f"{name} written")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.markdown")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if it would")
    if not parser.parse_args().check:
        write()
        return 0
    for name in (names := stale()):
        print(f"{name} is not what the run found")
    return 1 if names else 0


def _source(found: Mapping[str, Any]) -> str:
    about = f"{found['machine']}, {found['date'][:10]}, commit {found['commit']}"
    return f"Measured by `make bench`: {about}, {found['records_per_batch']:,} records a batch."


def _sources(runs: Sequence[Mapping[str, Any]]) -> str:
    latest = runs[-1]
    commits = ", ".join(run["commit"] for run in runs)
    about = f"{latest['machine']}, {len(runs)} runs until {latest['date'][:10]}, commits {commits}"
    return f"Measured by `make bench`: {about}, {latest['records_per_batch']:,} records a batch."


def _demux(rows: Sequence[Row]) -> str:
    titles = {
        "direct": "Distributary",
        "spark": "the same, a Spark write per table",
        "foreachbatch": "`foreachBatch`, a write per table",
        "queries": "a query per type",
        "floor": "scan into Arrow, no more",
        "noop": "scan to noop",
    }
    return _pivot(rows, titles, _speed)


def _speed(row: Row | None) -> str:
    if row is None:
        return _NONE
    unfinished = row.get("finished", row["tables"]) < row["tables"]
    suffix = f", {row['finished']} of them done" if unfinished else ""
    return f"{_rounded(row['rows_per_second'])} rows/s, {row['seconds_per_batch']:.1f} s{suffix}"


def _aims(runs: Sequence[Mapping[str, float]], named: Mapping[str, tuple[str, str]]) -> str:
    """What was found; of several runs, from the lowest to the highest."""
    lines = []
    for name, (what, form) in named.items():
        found = [ratios[name] for ratios in runs if name in ratios]
        if not found:
            continue
        low, high = form.format(min(found)), form.format(max(found))
        number = form[: form.index("}") + 1].format(min(found))
        lines.append([what, high if low == high else f"{number} to {high}"])
    return _table(["what", "found"], lines)


def _steps(rows: Sequence[Row]) -> str:
    return _each(
        [row for row in rows if row["case"] == "direct"],
        {
            "tables": lambda row: f"{row['tables']:,}",
            **_BATCH,
            "CPU seconds": lambda row: f"{row['cpu_seconds']:.1f}",
            **_MEMORY,
        },
    )


def _sizes(rows: Sequence[Row]) -> str:
    return _each(
        rows,
        {
            "records a batch": lambda row: f"{row['records']:,}",
            **_BATCH,
            "a file": lambda row: f"{row['file_bytes'] / 1e3:,.0f} kB",
            **_MEMORY,
        },
    )


def _freshness(rows: Sequence[Row]) -> str:
    return _each(
        rows,
        {
            "records a second": lambda row: f"{row['rate']:,}",
            "half of them": lambda row: f"{row['p50_seconds']:.2f} s",
            "95 of 100": lambda row: f"{row['p95_seconds']:.2f} s",
            "99 of 100": lambda row: f"{row['p99_seconds']:.2f} s",
            "driver, with its JVM": lambda row: _megabytes(row["driver_bytes"]),
        },
    )


def _changes(rows: Sequence[Row]) -> str:
    titles = {"direct": "Distributary, log and merge", "merge": "Spark `MERGE`, no log"}
    return _pivot(rows, titles, _seconds)


def _seconds(row: Row | None) -> str:
    return _NONE if row is None else f"{row['seconds_per_batch']:.1f} s"


def _age(rows: Sequence[Row]) -> str:
    return _each(
        rows,
        {
            "commits in each table": lambda row: f"{int(row['case']):,}",
            **{title: _BATCH[title] for title in ("seconds a batch", "commits")},
        },
    )


def _cluster(rows: Sequence[Row]) -> str:
    return _each(
        rows,
        {
            "workers": lambda row: row["case"].replace("-", " "),
            **_BATCH,
        },
    )


def _apart(rows: Sequence[Row]) -> str:
    return _each(
        rows,
        {
            "records": lambda row: f"{_APART[row['suite']]}, {row['tables']} tables",
            "where": lambda row: _PLACES[row["case"]],
            **{title: _BATCH[title] for title in ("rows/s", "seconds a batch")},
            "CPU seconds": lambda row: f"{row['cpu_seconds']:.1f}",
        },
    )


def _core(rows: Sequence[Row]) -> str:
    return _each(
        [row for row in rows if row["case"] == "direct"],
        {
            "records": lambda row: _CORE[row["suite"]],
            "tables": lambda row: f"{row['tables']:,}",
            "a second and core": lambda row: _rounded(
                row["rows_per_second"] * row["seconds_per_batch"] / row["cpu_seconds"]
            ),
        },
    )


def _pivot(
    rows: Sequence[Row], titles: Mapping[str, str], cell: Callable[[Row | None], str]
) -> str:
    """A line for each number of tables, a column for each case that was measured."""
    cases = [case for case in titles if any(row["case"] == case for row in rows)]
    by_place = {(row["tables"], row["case"]): row for row in rows}
    lines = [
        [f"{tables:,}", *(cell(by_place.get((tables, case))) for case in cases)]
        for tables in sorted({row["tables"] for row in rows})
    ]
    return _table(["tables", *(titles[case] for case in cases)], lines)


def _each(rows: Sequence[Row], columns: Mapping[str, Callable[[Row], str]]) -> str:
    return _table([*columns], [[cell(row) for cell in columns.values()] for row in rows])


def _table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(titles)
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, rule, *lines))


def _of(rows: Sequence[Row], suite: str) -> list[Row]:
    return [row for row in rows if row["suite"] == suite]


def _rounded(number: float) -> str:
    """Three digits: more would be noise."""
    whole = round(number)
    return f"{round(whole, 3 - max(3, len(str(whole)))):,}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"


if __name__ == "__main__":
    sys.exit(main())
