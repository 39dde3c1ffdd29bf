"""A source in a bucket of another server than the lake's: each is reached with its own key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from distributary.cli.doctor import checks_for_file
from distributary.engine.pipeline import Pipeline
from distributary.model.check import Check, CheckState
from distributary.model.manifest import Counts
from distributary.store import base
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcPlan
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.changes import Feed
from tests.lakes.games import TABLES, Games
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, S3Server, s3_server

OTHER_KEYS = {"aws_access_key_id": "canary-other", "aws_secret_access_key": "canary-hidden"}


@pytest.fixture(scope="module")
def lake_server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture(scope="module")
def source_server() -> Iterator[S3Server]:
    with s3_server(OTHER_KEYS, "feed") as started:
        yield started


@pytest.fixture(autouse=True)
def _strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_OPTIONS", {})


def spelled(options: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}: "{value}"' for name, value in options.items()) + "}"


def test_a_table_in_one_bucket_feeds_a_lake_in_another(
    lake_server: S3Server, source_server: S3Server, tasks: SparkSession, tmp_path: Path
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=10, bad=4))
    source, lake = f"s3://feed/{unique('wrapper')}", f"s3://{BUCKET}/{unique('lake')}"

    def pipeline(options: Mapping[str, str]) -> Pipeline:
        path = games.write_file(tables=TABLES, batch=15)
        text = path.read_text().replace(
            f"path: {games.lake}/wrapper", f"path: {source}, storage_options: {spelled(options)}"
        )
        told = f"lake: {{path: {lake}, storage_options: {spelled(lake_server.options)}}}"
        path.write_text(text.replace(f"lake: {{path: {games.lake}}}", told))
        return Pipeline.load(path)

    def checked(options: Mapping[str, str]) -> Check:
        (found,) = [
            each
            for each in checks_for_file(pipeline(options).loaded, None)
            if each.name == "source"
        ]
        assert "canary" not in found.found
        return found

    assert checked(source_server.options).state is CheckState.FAIL
    while games.send_round() is not None:
        rows = DeltaTable(str(games.lake / "wrapper")).to_pyarrow_table()
        old = sum(sent.messages for sent in games.sent[:-1])
        new = rows.sort_by("produced_at").slice(old) if old else rows
        for start in range(0, len(new), 10):
            part = new.slice(start, 10)
            write_deltalake(source, part, mode="append", storage_options=source_server.options)
        pipeline(source_server.options).run(spark=tasks)
    offsets: Counter[int] = Counter()
    for table, name in [
        *((t.table, "_offset") for t in pipeline({}).ledger().tables("games") if t.role == "each"),
        ("dead_letters", "offset"),
    ]:
        found = DeltaTable(f"{lake}/{table}", storage_options=lake_server.options)
        offsets.update(found.to_pyarrow_table()[name].to_pylist())
    assert offsets == Counter(range(sum(sent.messages for sent in games.sent)))
    assert pipeline(source_server.options).run(spark=tasks).counts == Counts()
    assert checked(source_server.options).state is CheckState.PASS
    # the lake's key opens nothing there
    endpoint = {"AWS_ENDPOINT_URL": source_server.options["AWS_ENDPOINT_URL"]}
    assert checked(endpoint).state is CheckState.FAIL


def test_files_in_one_bucket_with_progress_in_another(
    lake_server: S3Server, source_server: S3Server, tasks: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(tmp_path, CdcPlan(tables=3, events=120, rows=5, features=CHAOS, file_events=20))
    place, progress = unique("files"), f"s3://{BUCKET}/{unique('progress')}"

    def pipeline() -> Pipeline:
        path = feed.write_file()
        text = path.read_text().replace(
            f"path: {feed.files},",
            f"discovery: discovery-bucket, bucket: s3://feed, path: {place}, "
            f"storage_options: {spelled(source_server.options)},",
        )
        told = f"checkpoint: {progress}, storage_options: {spelled(lake_server.options)}}}"
        path.write_text(text.replace(f"path: {feed.lake}}}", f"path: {feed.lake}, {told}"))
        return Pipeline.load(path)

    while (sent := feed.send_round()) is not None:
        for file in sent.files:
            source_server.put(f"{place}/{file.path}", file.data)
        pipeline().run(spark=tasks)
    feed.assert_true()
    assert pipeline().run(spark=tasks).counts == Counts()
