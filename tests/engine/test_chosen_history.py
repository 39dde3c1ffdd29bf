"""A history of chosen columns, from the pipeline file to its rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from distributary.config.file.document import PipelineFileError
from distributary.config.load import load_text
from distributary.testing import Record, run

FILE = """
name: players
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [players]}}
payload: {{format: json}}
tables: {{each: "{{topic}}"}}
keys:
  - key: [id]
    order: [at]
    tombstones: skip
    delete_when: "gone"
    history: {history}
    history_columns: {columns}
lake: {{path: ./lake}}
"""


def player(at: int, tier: str, **more: Any) -> dict[str, Any]:
    return {"id": 1, "at": at, "tier": tier, "score": 10 * at, "gone": False} | more


RECORDS = [
    player(1, "a"),
    player(2, "a"),
    player(4, "b"),
    player(5, "b"),
    # late: it parts nothing, and then a version in two
    player(3, "a"),
    player(6, "b", gone=True),
    player(8, "b"),
    player(7, "b", gone=True),
    {**player(1, "z"), "id": 2},
]


@pytest.mark.parametrize("size", [1, 2, 4, 100])
def test_versions_begin_with_changes_of_the_chosen_columns(size: int) -> None:
    text = FILE.format(history="true", columns="[tier]")
    records = [Record(json.dumps(record).encode()) for record in RECORDS]
    result = run(text, records, batch_size=size)
    rows = result.tables["players_history"].sort_by([("id", "ascending"), ("at", "ascending")])
    names = ["id", "at", "tier", "score", "_deleted", "_current"]
    assert [tuple(row.values()) for row in rows.select(names).to_pylist()] == [
        (1, 1, "a", 10, False, False),
        (1, 4, "b", 40, False, False),
        (1, 6, "b", 60, True, False),
        (1, 8, "b", 80, False, True),
        (2, 1, "z", 10, False, True),
    ]
    assert result.tables["players"].num_rows == 2
    assert result.tables["players_log"].num_rows == len(RECORDS)


@pytest.mark.parametrize(("history", "columns"), [("false", "[tier]"), ("true", "[tier, Tier]")])
def test_settings_that_contradict_each_other(history: str, columns: str) -> None:
    with pytest.raises(PipelineFileError) as caught:
        load_text(FILE.format(history=history, columns=columns))
    assert caught.value.problems[0].path.startswith("keys[0].history_columns")
