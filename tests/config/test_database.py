"""The address of a source database in the pipeline file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from distributary.config.file.document import Problem
from distributary.config.load import Loaded, load_text

Problems = Callable[..., list[Problem]]

PIPELINE = """\
name: shop
source: {{type: kafka, bootstrap_servers: "127.0.0.1:1", topics: [shop]}}
payload: {{format: json}}
cdc: {{format: debezium, source_url: "{url}"}}
tables: {{each: "{{table}}"}}
lake: {{path: ./lake}}
alerts: {{on: {{held_log: 10GiB}}}}
"""


def load(url: str, **environ: str) -> Loaded:
    return load_text(PIPELINE.format(url=url), environ=environ)


def address(loaded: Loaded) -> str:
    assert loaded.config.cdc is not None and loaded.config.cdc.source_url is not None
    return loaded.config.cdc.source_url.get_secret_value()


def test_an_address_is_a_secret() -> None:
    loaded = load("postgresql://reader:${env:WORD}@db/shop", WORD="very-secret")
    assert address(loaded) == "postgresql://reader:very-secret@db/shop"
    assert "very-secret" not in repr(loaded.config)
    assert "very-secret" not in loaded.mask(f"cannot reach {address(loaded)}")
    assert loaded.config.alerts.on.held_log == 10 * 2**30


def test_a_command_that_needs_no_address_reads_none(tmp_path: Path) -> None:
    text = PIPELINE.format(url=f"${{file:{tmp_path / 'missing'}}}")
    assert load_text(text, environ={}, needs=("lake",)).config.cdc is not None


@pytest.mark.parametrize(
    "url",
    [
        "mysql://reader:canary@db/shop",
        "oracle://reader:canary@db/shop",
        "postgresql://reader:canary@db",
        "postgresql://reader:canary@db:port/shop",
        "canary",
    ],
)
def test_what_is_refused(problems_of: Problems, url: str) -> None:
    (problem,) = problems_of(PIPELINE.format(url=url))
    assert problem.path == "cdc.source_url"
    assert "canary" not in str(problem)
