from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from distributary.config.file.show import as_json, rows
from distributary.config.load import Loaded, every_setting, load

Load = Callable[..., Loaded]


def test_each_row_has_key_value_and_origin(loaded: Load) -> None:
    shown = {row.key: row for row in rows(loaded(overrides={"run.lease": "30s"}))}
    assert (shown["run.lease"].text, str(shown["run.lease"].origin)) == ("30s", "flag run.lease")
    assert (shown["source.topics"].value, str(shown["source.topics"].origin)) == (
        ["events"],
        "pipeline.yaml:5",
    )
    assert shown["source.fail_on_data_loss"].text == "true"
    assert shown["limits.max_payload_bytes"].text == "16MiB"
    assert str(shown["limits.max_payload_bytes"].origin) == "default"
    assert (shown["registry"].text, str(shown["registry"].origin)) == ("", "default")
    assert shown["payload.validate"].text == "none"
    # the default that follows from other settings is still a default
    assert (shown["payload.framing"].text, str(shown["payload.framing"].origin)) == (
        "none",
        "default",
    )


def test_a_section_written_in_short_keeps_its_line(loaded: Load, minimal: str) -> None:
    text = minimal.replace("  each:", "  unified: gold\n  each:")
    shown = {row.key: row for row in rows(loaded(text))}
    assert str(shown["tables.unified.name"].origin) == "pipeline.yaml:9"
    assert str(shown["tables.unified.mode"].origin) == "default"


def test_options_are_rows_of_their_own(loaded: Load) -> None:
    shown = {
        row.key: row.text
        for row in rows(
            loaded(
                overrides={
                    "spark.conf.spark.a": "http://u:p@h",
                    "lake.storage_options": {"aws_region": "eu", "aws_secret_access_key": "x"},
                    "source.starting_offsets": {"t": {0: 1}},
                }
            )
        )
    }
    assert shown["spark.conf.spark.a"] == "http://***@h"
    assert shown["lake.storage_options.aws_region"] == "eu"
    assert shown["lake.storage_options.aws_secret_access_key"] == "***"
    assert shown["source.starting_offsets.t"] == "{'0': 1}"


def test_every_case_is_shown_whole_and_as_json(case: Path, cloud: dict[str, str]) -> None:
    loaded = load(case, environ=cloud)
    shown = {row.key for row in rows(loaded)}
    # what is written is shown, and nothing is shown that is not a setting
    written = {key for key in loaded.origins if key != "tables.unified"}
    assert written <= shown
    assert shown <= {".".join(path) for path in every_setting()}
    document = json.loads(json.dumps(as_json(loaded)))
    assert document["version"] == 1
    assert {row["key"] for row in document["settings"]} == shown
    assert {row["origin"]["kind"] for row in document["settings"]} == {"file", "default"}
