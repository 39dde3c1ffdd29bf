"""The example project over a real topic and a real registry; a version is registered in between."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.pipelines.test_example import EXAMPLE, command, run
from tests.services.shared import unique

if TYPE_CHECKING:
    from distributary_lab.services.services import Services

pytestmark = [pytest.mark.cluster, pytest.mark.services, pytest.mark.slow]


def test_a_topic_feeds_a_streaming_table_that_grows(tmp_path: Path, services: Services) -> None:
    project, topic = tmp_path / "project", unique("people")
    shutil.copytree(EXAMPLE, project)
    (project / "games.yaml").write_text(
        "name: people-declarative\n"
        f"source: {{type: kafka, bootstrap_servers: '{services.kafka}', topics: [{topic}]}}\n"
        f"registry: {{url: '{services.registry}'}}\n"
        "payload: {format: protobuf, framing: confluent}\n"
        "tables: {each: 'silver_{type}'}\n"
        "lake: {path: ./lake}\n"
    )
    where = ("--bootstrap-servers", services.kafka, "--registry-url", services.registry)
    produce = ("produce", "people", "--to", "kafka", *where, "--topic", topic, "--records", 20)
    command(tmp_path, *produce, "--versions", 1)
    assert run(project)["updates"] == 1
    (people,) = (project / "spark-warehouse" / "games.db").glob("silver_*")
    first = DeltaTable(people).to_pyarrow_table()
    assert first.num_rows == 20
    assert {"name", "email", "quantity"} <= set(first.column_names)

    sent = command(tmp_path, *produce, "--versions", 3)
    run(project)
    rows = DeltaTable(people).to_pyarrow_table()
    assert rows.num_rows == 20 + sent["messages"]
    new = set(rows.column_names) - set(first.column_names)
    assert len(new) >= 2 and all(name.startswith("measure") for name in new)
    places = set(zip(rows["_partition"].to_pylist(), rows["_offset"].to_pylist(), strict=True))
    assert len(places) == rows.num_rows
