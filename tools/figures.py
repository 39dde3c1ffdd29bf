"""Draws the figures of the README and of `docs/`: `make figures` writes them to `docs/assets`."""

from __future__ import annotations

from collections.abc import Sequence

from tools import layers
from tools.drawing import Drawing
from tools.layers import ROOT

FOLDER = ROOT / "docs" / "assets"
_OF_A_TABLE = 22


def overview() -> Drawing:
    """Draw the system: sources, the run, the lake, and what looks at it."""
    picture = Drawing("Distributary: from one stream to a table for each type", 960, 560)
    box, arrow = picture.box, picture.arrow
    picture.group(12, 12, 190, 236, "Sources")
    box(28, 44, 158, 54, "Kafka", "topics or a pattern")
    box(28, 110, 158, 54, "Delta table", "rows with a payload")
    box(28, 176, 158, 54, "Change files", "of a database")
    box(28, 268, 158, 54, "Schemas", "registry or folder")
    picture.group(262, 12, 260, 330, "Distributary, on Spark")
    box(284, 48, 216, 74, "Driver", "plans a batch, decides it,", "commits each table", kind="good")
    box(284, 158, 216, 74, "Tasks", "read and decode records,", "write files", kind="good")
    box(284, 268, 216, 54, "Monitor", "lag, states, failures", kind="good")
    arrow((392, 122), (392, 158))
    picture.group(582, 12, 190, 330, "Lake, disk or bucket")
    for row, texts in enumerate(
        [
            ("Tables", "one for each type"),
            ("Dead letters", "whole, with the reason"),
            ("Ledger", "account of all batches"),
            ("Checkpoint", "manifests, position"),
        ]
    ):
        box(598, 44 + 74 * row, 158, 58, *texts, kind="lake")
    box(806, 44, 142, 58, "Your readers", "Spark, DuckDB, ...")
    box(806, 118, 142, 58, "Catalog", "Unity, Glue, Hive")
    box(806, 192, 142, 58, "Commands, page", "status, trace, verify")
    box(806, 284, 142, 58, "Watching", "metrics, alerts")
    arrow((202, 195), (284, 195))
    arrow((186, 295), (234, 295), (234, 85), (284, 85))
    arrow((500, 85), (582, 85))
    arrow((500, 195), (582, 195))
    arrow((806, 73), (756, 73))
    arrow((772, 147), (806, 147))
    arrow((806, 221), (772, 221))
    arrow((500, 295), (552, 295), (552, 358), (877, 358), (877, 342))
    for number, (x, y) in enumerate(
        [
            (28, 44),
            (28, 268),
            (284, 48),
            (284, 158),
            (598, 44),
            (598, 118),
            (598, 192),
            (598, 266),
            (806, 44),
            (806, 118),
            (806, 192),
            (806, 284),
        ],
        1,
    ):
        picture.number(x, y, number)
    picture.legend(
        392,
        [
            "Records of many types, in one stream. Nothing is changed there.",
            "Asked by the driver alone, once for each new schema.",
            "One serves a thousand tables; a second one is refused.",
            "Decode each record with the schema that its id names.",
            "Created and widened by the batch that brings a new schema.",
            "Records that cannot be rows; dlq replay sends them again.",
            "read = written + dead letters + parked + skipped",
            "What a killed run needs to finish its batch exactly once.",
            "Plain Delta tables (or Iceberg, Parquet): any reader opens them.",
            "Tables by their names, registered beside the batches.",
            "Read the lake, also when nothing runs; need no JVM.",
            "Prometheus, mail, Slack, PagerDuty, OpenLineage.",
        ],
    )
    return picture


def batch() -> Drawing:
    """Draw the six steps of a batch, and what a kill means at each of them."""
    picture = Drawing("The walk of a batch", 960, 372)
    steps = [
        ("Source", "where does it", "end?"),
        ("Plan", "schemas, tables,", "columns"),
        ("Stage", "decode, write", "hidden files"),
        ("Manifest", "the batch", "is decided"),
        ("Publish", "one marked com-", "mit per table"),
        ("Settle", "the account goes", "to the ledger"),
    ]
    for index, texts in enumerate(steps):
        x = 20 + index * 158
        kind = "good" if texts[0] == "Manifest" else ""
        picture.box(x, 52, 130, 84, *texts, kind=kind)
        picture.number(x, 52, index + 1)
        picture.text(x + 65, 156, "tasks" if texts[0] == "Stage" else "driver", kind="below")
        if index:
            picture.arrow((x - 28, 94), (x, 94))
    picture.line((480, 20), (480, 230), kind="dashed")
    picture.text(245, 34, "not decided", kind="head")
    picture.text(715, 34, "decided", kind="head")
    picture.box(
        20,
        176,
        446,
        54,
        "Killed here: no table has changed",
        "the next run reads the records again",
        kind="group",
    )
    picture.box(
        494,
        176,
        446,
        54,
        "Killed here: the next run finishes the batch",
        "tables that have its mark are skipped",
        kind="good",
    )
    picture.legend(
        262,
        [
            "Counts the records by the source's own offsets.",
            "Asks the registry for new schemas; makes room in tables.",
            "Bad records become dead letters, in the same batch.",
            "A document, created once. It must add up, or the run stops.",
            "Tables that cannot be written are parked; others go on.",
            "Metrics, alerts and lineage hear of the batch here.",
        ],
    )
    picture.text(480, 352, "read = written + dead letters + parked + skipped", kind="code")
    return picture


def change_data() -> Drawing:
    """Draw how events become a log and a table of current rows."""
    picture = Drawing("Change data: a log of every event, and the rows as they are now", 960, 418)
    _table(
        picture,
        20,
        46,
        250,
        "Events, as they arrive",
        "position  change",
        [
            "102  update 1: paid",
            "101  insert 1: open",
            "102  update 1: paid",
            "104  delete 2",
            "103  insert 2: open",
        ],
    )
    picture.text(145, 222, "late, repeated, in any order", kind="below")
    _table(
        picture,
        355,
        46,
        250,
        "orders_log",
        "_seq  _op     id  status",
        [
            " 102  update   1  paid",
            " 101  insert   1  open",
            " 104  delete   2",
            " 103  insert   2  open",
        ],
        kind="lake",
    )
    picture.text(480, 200, "each event once", kind="below")
    _table(picture, 690, 46, 250, "orders", "id  status  _seq", [" 1  paid     102"], kind="lake")
    _table(picture, 690, 146, 250, "Tombstones", "id  deleted at", [" 2  104"], kind="lake")
    _table(
        picture,
        690,
        246,
        250,
        "orders_history (a setting)",
        "id  status   from  to",
        [
            " 1  open     101   102",
            " 1  paid     102",
            " 2  open     103   104",
            " 2  deleted  104",
        ],
        kind="lake",
    )
    picture.arrow((270, 112), (355, 112))
    picture.arrow((605, 80), (690, 80))
    picture.arrow((605, 112), (648, 112), (648, 180), (690, 180))
    picture.arrow((605, 144), (632, 144), (632, 290), (690, 290))
    for number, (x, y) in enumerate([(312, 112), (355, 46), (690, 46), (690, 146), (690, 246)], 1):
        picture.number(x, y, number)
    for row, sentence in enumerate(
        [
            "One batch writes the log and merges it.",
            "The truth: all else can be made from it.",
            "The newest event of each key, by position.",
            "So that 103, which came late, brings no row back.",
            "Every version of a row, with its times.",
        ]
    ):
        at = 262 + row * 24
        picture.number(32, at, row + 1)
        picture.text(50, at + 4, sentence, kind="start below")
    picture.text(
        32,
        398,
        "rebuild makes the table again from the log; verify compares both",
        kind="start below",
    )
    return picture


def cluster() -> Drawing:
    """Draw a pipeline as a job on a cluster, with a lake in a bucket."""
    picture = Drawing("One pipeline on a cluster", 960, 500)
    box, arrow = picture.box, picture.arrow
    box(20, 150, 132, 62, "Kafka", "partitions")
    box(20, 44, 132, 62, "Registry", "schemas")
    picture.group(212, 12, 500, 300, "Cluster: standalone, Kubernetes, YARN, Databricks")
    box(232, 44, 460, 62, "Driver", "offsets, plan, manifest, commits", kind="good")
    for row, name in enumerate(["Executor 1", "Executor 2"]):
        y = 142 + row * 84
        picture.frame(232, y, 460, 70)
        picture.text(274, y + 40, name)
        box(322, y + 12, 140, 46, "Hop one", "read, sort by key")
        box(532, y + 12, 140, 46, "Hop two", "decode, write")
        arrow((462, y + 35), (532, y + 35))
    picture.line((480, 177), (514, 261))
    picture.line((480, 261), (514, 177))
    picture.group(770, 12, 176, 300, "Bucket")
    for row, texts in enumerate(
        [
            ("Ledger", "and dead letters"),
            ("Checkpoint", "claim, manifests"),
            ("Tables", "logs and files"),
        ]
    ):
        box(786, 44 + 88 * row, 144, 66, *texts, kind="lake")
    arrow((152, 75), (232, 75))
    arrow((152, 181), (232, 181))
    arrow((152, 200), (184, 200), (184, 261), (232, 261))
    arrow((692, 75), (770, 75))
    arrow((692, 261), (770, 261))
    arrow((692, 177), (734, 177), (734, 245), (770, 245))
    arrow((462, 106), (462, 142), kind="dashed")
    box(20, 262, 132, 50, "Your laptop", "commands, page")
    arrow((86, 312), (86, 334), (858, 334), (858, 312))
    for number, (x, y) in enumerate(
        [
            (232, 44),
            (192, 75),
            (232, 142),
            (497, 219),
            (532, 238),
            (692, 75),
            (786, 132),
            (20, 262),
        ],
        1,
    ):
        picture.number(x, y, number)
    picture.legend(
        372,
        [
            "The driver alone decides; it holds the claim on the checkpoint.",
            "Only the driver asks the registry; tasks get the schemas.",
            "Tasks read their offsets with librdkafka, by Python workers.",
            "Spark's shuffle, or a disk that all executors see.",
            "Files go to the bucket before the manifest names them.",
            "One conditional put commits a table: no lock, no common disk.",
            "A new driver goes on from here after a crash.",
            "status, query, trace and the page read the bucket only.",
        ],
    )
    return picture


def _table(
    picture: Drawing,
    x: float,
    y: float,
    width: float,
    title: str,
    head: str,
    rows: Sequence[str],
    *,
    kind: str = "",
) -> None:
    """Draw a table of text: a title above, a line of names, and rows."""
    picture.text(x + width / 2, y - 10, title, kind="head")
    picture.frame(x, y, width, (len(rows) + 1) * _OF_A_TABLE + 6, kind=kind)
    for number, row in enumerate([head, *rows]):
        # spaces hold the columns apart
        text = row.replace(" ", "\u00a0")
        at = y + 18 + number * _OF_A_TABLE
        picture.text(x + 14, at, text, kind="start code below" if number == 0 else "start code")


FIGURES = {"overview": overview, "batch": batch, "change-data": change_data, "cluster": cluster}


def pictures() -> dict[str, str]:
    """Return every figure as SVG, by the name of its file."""
    drawn = {f"{name}.svg": draw().svg() for name, draw in FIGURES.items()}
    return {**drawn, layers.PICTURE.name: layers.draw()}


def write() -> None:
    """Write all figures."""
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    write()
