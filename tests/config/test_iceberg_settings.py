"""What a pipeline file may say about Iceberg tables."""

from pathlib import Path

import pytest

from distributary.config.lake import NarrowEvolution
from distributary.config.load import load
from distributary.errors import ConfigError

FILE = """
name: games
source: {type: kafka, bootstrap_servers: "127.0.0.1:9092", topics: [wrapper]}
registry: {url: "http://127.0.0.1:8081"}
envelope: {format: protobuf, subject: wrapper-value, type: game, schema_id: id, payload: payload}
payload: {format: protobuf}
tables: {bronze: bronze_events, each: "silver_{type}", format: iceberg}
lake: {path: /data/lake}
"""


def loaded(tmp_path: Path, text: str = FILE, **overrides: object):  # type: ignore[no-untyped-def]
    path = tmp_path / "games.yaml"
    path.write_text(text)
    return load(path, overrides=overrides).config


def test_types_become_wider_as_iceberg_allows(tmp_path: Path) -> None:
    assert isinstance(loaded(tmp_path).evolution, NarrowEvolution)
    config = loaded(tmp_path, FILE + "evolution: {new_field: ignore}\n")
    assert isinstance(config.evolution, NarrowEvolution)
    assert config.evolution.new_field == "ignore"
    delta = loaded(tmp_path, FILE.replace("iceberg", "delta"))
    assert not isinstance(delta.evolution, NarrowEvolution)


def test_mirrors_of_delta_tables(tmp_path: Path) -> None:
    text = FILE.replace("format: iceberg", "format: delta")
    iceberg = "iceberg: {tables: ['silver_*', bronze_events], every: 5m}"
    config = loaded(tmp_path, text.replace("/data/lake", f"/data/lake, {iceberg}"))
    assert isinstance(config.evolution, NarrowEvolution)
    assert config.lake.iceberg is not None
    names = ("silver_chess", "bronze_events", "unified_gold", "Silver_chess")
    assert [config.lake.iceberg.mirrors(name) for name in names] == [True, True, False, False]


def test_a_catalog_in_the_lake_is_the_default(tmp_path: Path) -> None:
    catalog = loaded(tmp_path).lake.iceberg
    assert catalog is not None
    assert (catalog.type, catalog.uri, catalog.namespace) == ("sql", None, "default")
    assert catalog.mirrors("silver_chess")
    # a bucket has no place for a database
    catalog = loaded(tmp_path, FILE.replace("/data/lake", "'s3://bucket/lake'")).lake.iceberg
    assert catalog is not None
    assert catalog.type == "none"


@pytest.mark.parametrize(
    "change",
    [
        ("format: iceberg", "format: iceberg, partition_by: [_date]"),
        ("path: /data/lake", "path: /data/lake, database: games"),
        ("lake:", "maintain: {every: 1h}\nlake:"),
        ("path: /data/lake", "path: /data/lake, iceberg: {type: none, every: 1h, keep: 1d}"),
        ("path: /data/lake", "path: 's3://bucket/lake', iceberg: {type: rest, uri: 'http://x'}"),
        ("path: /data/lake", "path: 's3://bucket/lake', iceberg: {type: sql, uri: 'sqlite://'}"),
    ],
)
def test_what_delta_tables_can_do(tmp_path: Path, change: tuple[str, str]) -> None:
    assert change[0] in FILE
    assert loaded(tmp_path, FILE.replace(*change)).lake.iceberg is not None


@pytest.mark.parametrize(
    "change",
    [
        ("format: iceberg", "format: iceberg, publisher: spark"),
        ("path: /data/lake", "path: 's3://bucket/lake', iceberg: {type: sql}"),
        ("path: /data/lake", "path: /data/lake, iceberg: {type: rest}"),
        ("path: /data/lake", "path: /data/lake, iceberg: {token: x}"),
        ("path: /data/lake", "path: /data/lake, iceberg: {tables: ['silver_*']}"),
        ("format: iceberg}\nlake: {", "format: parquet}\nlake: {iceberg: {}, "),
        ("format: iceberg}\nlake: {", "format: delta}\nlake: {iceberg: {uri: x}, "),
        ("format: iceberg}\nlake: {", "format: delta}\nlake: {iceberg: {type: none, uri: x}, "),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    assert change[0] in FILE
    with pytest.raises(ConfigError):
        loaded(tmp_path, FILE.replace(*change))
