"""The cases, and a small pipeline that tests change one line of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from distributary.config.file.document import PipelineFileError, Problem
from distributary.config.load import Loaded, load_text

CASES = Path(__file__).parent / "cases"

CLOUD = {
    "KAFKA_SERVER": "broker.example:9092",
    "KAFKA_KEY": "kafka-user",
    "KAFKA_SECRET": "canary-kafka-secret",
    "SR_URL": "https://registry.example",
    "SR_API_KEY": "registry-user",
    "SR_API_SECRET": "canary-registry-secret",
    "LAKE_PATH": "s3://lake/games",
}

MINIMAL = """\
name: small
source:
  type: kafka
  bootstrap_servers: 127.0.0.1:9092
  topics: [events]
payload:
  format: json
tables:
  each: "{topic}"
lake:
  path: ./lake
"""

Problems = Callable[..., list[Problem]]


@pytest.fixture
def minimal() -> str:
    return MINIMAL


@pytest.fixture
def cloud() -> dict[str, str]:
    return dict(CLOUD)


@pytest.fixture(params=sorted(CASES.glob("*.yaml")), ids=lambda path: path.stem)
def case(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def problems_of() -> Problems:
    def collect(
        text: str,
        *,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> list[Problem]:
        with pytest.raises(PipelineFileError) as caught:
            load_text(text, environ=environ or {}, overrides=overrides or {})
        return list(caught.value.problems)

    return collect


@pytest.fixture
def loaded() -> Callable[..., Loaded]:
    def build(
        text: str = MINIMAL,
        *,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> Loaded:
        return load_text(text, environ=environ or {}, overrides=overrides or {})

    return build
