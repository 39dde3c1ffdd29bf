"""A lake that somebody else can write to: nothing outside of it is removed, written or shown."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from distributary.config.lake import Maintain
from distributary.delta.log import snapshot_of
from distributary.delta.tables import open_table, read_rows
from distributary.engine.pipeline import Pipeline
from distributary.engine.planning.table_book import log_files
from distributary.engine.progress.removal import finish_removal
from distributary.errors import CheckpointError, ErrorCode, OutsideLakeError, PublishError
from distributary.model import layout
from distributary.model.manifest import Mark, entry_from_dict, entry_to_dict
from distributary.model.table import STAGED, STAGING, Role
from distributary.observe.cards import Registration, register
from distributary.operations.maintain import UpkeepStep, Wishes, jobs_of, maintain
from distributary.operations.repair.reset_clean import plan_clean, plan_reset, remove
from distributary.operations.repair.resume_table import resume
from distributary.publish.formats.table_format_entry import open_readable
from distributary.publish.parking import in_lake, parked
from distributary.publish.parquet_publisher import ParquetPublisher
from distributary.web.drawing import preview
from tests.lakes.settled import SettledLake

LONG_AGO = time.time() - 400 * 24 * 3600


@pytest.fixture
def games(tmp_path: Path) -> SettledLake:
    made = SettledLake(tmp_path / "mine")
    made.batch({"chess": 3, "go": 2}, letters=1)
    return made


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What belongs to the person who runs the commands, and to no lake."""
    folder = tmp_path / "outside"
    for name in ("stream", "games", "runs/stream", "manifests"):
        (folder / name).mkdir(parents=True)
        (folder / name / "precious.txt").write_text("precious")
    (folder / "precious.txt").write_text("precious")
    (folder / ".dotfile").write_text("precious")
    for path in folder.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def wishes(*steps: UpkeepStep) -> Wishes:
    return Wishes(Maintain(), steps)


@pytest.mark.parametrize("way", ["absolute", "dots"])
def test_unfinished_removal_takes_nothing_outside(
    games: SettledLake, outside: Path, way: str
) -> None:
    path = str(outside) if way == "absolute" else f"{games.lake}/../../outside"
    card = Path(layout.pipeline(str(games.lake), "games"))
    named = [{"kind": kind, "path": path} for kind in ("table", "parked files", "anything")]
    (card / "removal.json").write_text(json.dumps(named))
    before = everything(outside)
    finish_removal(Pipeline.load(games.file))
    assert everything(outside) == before


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"kind": "table"}]', '[{"a": 1}]', '[{"kind": 1, "path": 2}]']
)
def test_unfinished_removal_that_says_nothing_is_told(games: SettledLake, text: str) -> None:
    card = Path(layout.pipeline(str(games.lake), "games"))
    (card / "removal.json").write_text(text)
    if text == "{}":
        finish_removal(Pipeline.load(games.file))
        return
    with pytest.raises(CheckpointError) as caught:
        finish_removal(Pipeline.load(games.file))
    assert caught.value.code is ErrorCode.CHECKPOINT_INVALID


def test_clean_of_a_copied_lake_leaves_the_other_alone(games: SettledLake, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(games.lake, copy)
    before = everything(games.lake)
    text = games.file.read_text().replace(f"path: {games.lake}", f"path: {copy}")
    file = tmp_path / "copy.yaml"
    file.write_text(text)
    pipeline = Pipeline.load(file)
    remove(pipeline, plan_clean(pipeline))
    assert everything(games.lake) == before
    assert not (copy / "silver_chess").exists()


@pytest.mark.parametrize(
    "link",
    [
        "_checkpoints/games",
        "_checkpoints",
        "_distributary/pipelines/games/parked",
        "_distributary/pipelines",
        "_distributary/removed",
        "_distributary",
        "silver_chess",
        "silver_chess/_delta_log",
    ],
)
def test_nothing_is_removed_through_a_link(games: SettledLake, outside: Path, link: str) -> None:
    pipeline = Pipeline.load(games.file)
    planned = [*plan_clean(pipeline), *plan_reset(pipeline)]
    place = games.lake / link
    if place.is_dir():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(outside, target_is_directory=True)
    before = everything(outside)
    for plan in (plan_clean, plan_reset, lambda _: planned):
        try:
            remove(pipeline, plan(pipeline))
        except PublishError as error:
            assert error.code is ErrorCode.OUTSIDE_LAKE
    assert before <= everything(outside)


def test_leftovers_are_removed_from_checkpoints_of_this_lake_only(
    games: SettledLake, outside: Path
) -> None:
    (outside / "manifests" / ".a.draft").write_text("precious")
    os.utime(outside / "manifests" / ".a.draft", (LONG_AGO, LONG_AGO))
    register(str(games.lake), Registration("evil", "evil.yaml", str(outside)))
    trap = games.lake / "_checkpoints" / "trap"
    (trap / "games" / "claims").mkdir(parents=True)
    (trap / "life.json").write_text(json.dumps({"life": "x", "pipeline": "trap"}))
    (trap / "runs").symlink_to(outside, target_is_directory=True)
    register(str(games.lake), Registration("trap", "trap.yaml", str(trap)))
    before = everything(outside)
    with pytest.raises(OutsideLakeError):
        maintain(str(games.lake), (), wishes(UpkeepStep.EXPIRE))
    (trap / "runs").unlink()
    maintain(str(games.lake), (), wishes(UpkeepStep.EXPIRE))
    assert everything(outside) == before


@pytest.mark.parametrize("link", ["", "_delta_log"])
def test_maintenance_passes_over_a_table_that_leads_outside(
    games: SettledLake, tmp_path: Path, link: str
) -> None:
    other = tmp_path / "other"
    write_deltalake(str(other), pa.table({"n": [1]}))
    (other / "orphan.parquet").write_text("precious")
    for path in other.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    table = games.lake / "silver_chess"
    place = table / link if link else table
    shutil.rmtree(place)
    place.symlink_to(other / link, target_is_directory=True)
    before = everything(other)
    report = maintain(str(games.lake), jobs_of(str(games.lake)), wishes(*UpkeepStep))
    assert everything(other) == before
    (chess,) = (each for each in report.tables if each.table == "silver_chess")
    assert set(chess.skipped) == set(UpkeepStep)


def test_compaction_reads_and_writes_only_in_the_table(games: SettledLake, tmp_path: Path) -> None:
    home, table = tmp_path / "home", games.lake / "silver_chess"
    for n in range(8):
        path = home / f"part-{n}.parquet"
        home.mkdir(exist_ok=True)
        pq.write_table(pa.table({"move": ["secret"]}), path)
        add = {
            "path": f"../../../home/{path.name}",
            "size": path.stat().st_size,
            "partitionValues": {},
            "modificationTime": 0,
            "dataChange": True,
        }
        (table / "_delta_log" / f"{n + 1:020d}.json").write_text(json.dumps({"add": add}))
    before = everything(home)
    report = maintain(str(games.lake), jobs_of(str(games.lake)), wishes(UpkeepStep.OPTIMIZE))
    (chess,) = (each for each in report.tables if each.table == "silver_chess")
    assert chess.error is not None and chess.error["code"] == ErrorCode.OUTSIDE_LAKE
    assert everything(home) == before
    with pytest.raises(PublishError) as caught:
        log_files(str(table))
    assert caught.value.code is ErrorCode.OUTSIDE_LAKE
    found = snapshot_of(str(table))
    assert found is not None
    with pytest.raises(PublishError) as caught:
        found.rows(pa.schema([("move", pa.string())]))
    assert caught.value.code is ErrorCode.OUTSIDE_LAKE


def test_staging_that_leads_outside_is_passed_over(tmp_path: Path, outside: Path) -> None:
    games = SettledLake(tmp_path / "plain", format="parquet")
    games.batch({"chess": 3})
    (outside / f"x{STAGED}").write_text("precious")
    os.utime(outside / f"x{STAGED}", (LONG_AGO, LONG_AGO))
    staging = games.lake / "silver_chess" / STAGING
    shutil.rmtree(staging)
    staging.symlink_to(outside, target_is_directory=True)
    before = everything(outside)
    maintain(str(games.lake), jobs_of(str(games.lake)), wishes(UpkeepStep.VACUUM))
    assert everything(outside) == before


@pytest.mark.parametrize("path", ["../../../outside/precious.txt", "/precious.txt", "x/../../y"])
def test_intent_of_a_plain_table_names_only_its_own_files(
    tmp_path: Path, outside: Path, path: str
) -> None:
    games = SettledLake(tmp_path / "plain", format="parquet")
    games.batch({"chess": 3})
    table = games.lake / "silver_chess"
    named = path.replace("/precious.txt", str(outside / "precious.txt")) if path[0] == "/" else path
    intent = {"app_id": "x", "batch": 7, "files": [named, "no-such.parquet"]}
    (table / "_distributary" / "intent.json").write_text(json.dumps(intent))
    games.batch({"chess": 3})
    assert (outside / "precious.txt").exists()


def test_plain_table_whose_own_folder_leads_outside_is_not_written(
    tmp_path: Path, outside: Path
) -> None:
    games = SettledLake(tmp_path / "plain", format="parquet")
    games.batch({"chess": 3})
    home = games.lake / "silver_chess" / "_distributary"
    shutil.rmtree(home)
    home.symlink_to(outside, target_is_directory=True)
    before = everything(outside)
    entry = games._each("chess", [1], 5)
    with pytest.raises(PublishError) as caught:
        ParquetPublisher().publish(entry, Mark("app", 5, "x"))
    assert caught.value.code is ErrorCode.OUTSIDE_LAKE
    assert before <= everything(outside)
    assert not (outside / "lock").exists()


@pytest.mark.parametrize("way", ["path", "link"])
def test_parked_batch_writes_only_into_the_lake(
    games: SettledLake, tmp_path: Path, way: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    games.batch({"chess": 1}, parked=["silver_chess"])
    [batch] = parked(games.parking)
    place = Path(batch.folder)
    (place / "keys.parquet").write_text("evil")
    entry = json.loads((place / "entry.json").read_text().splitlines()[0])
    file = entry["entry"]["files"][0]
    entry["entry"]["files"] = [{**file, "path": "keys.parquet", "size": 4}]
    if way == "path":
        entry["entry"]["path"] = str(home)
    else:
        shutil.rmtree(games.lake / "silver_chess")
        (games.lake / "silver_chess").symlink_to(home, target_is_directory=True)
    (place / "entry.json").write_text(json.dumps(entry))
    resume(Pipeline.load(games.file), "silver_chess")
    assert everything(home) == set()


@pytest.mark.parametrize("path", ["../x.parquet", "/etc/x.parquet", "a/../../x", "", "s3://b/x"])
def test_file_of_a_batch_lies_in_its_table(games: SettledLake, path: str) -> None:
    manifest = games.batch({"chess": 1})
    entry = next(e for e in manifest.tables if e.table.role is Role.EACH)
    data = entry_to_dict(entry)
    data["files"][0]["path"] = path
    with pytest.raises(ValueError, match="table"):
        entry_from_dict(data)


def test_decided_batch_is_published_in_this_lake(games: SettledLake, outside: Path) -> None:
    manifest = games.batch({"chess": 1})
    moved = [
        replace(e, table=replace(e.table, path=f"{outside}/{e.table.name}"))
        for e in manifest.tables
    ]
    assert [in_lake(entry, str(games.lake)) for entry in moved] == list(manifest.tables)


def reveal(table: Path, secret: Path, way: str) -> None:
    log = table / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    named = {
        "dots": "../../secret.parquet",
        "encoded": "%2e%2e/%2e%2e/secret.parquet",
        "file": "link.parquet",
        "folder": "link/secret.parquet",
    }[way]
    if way == "file":
        (table / "link.parquet").symlink_to(secret)
    if way == "folder":
        (table / "link").symlink_to(secret.parent, target_is_directory=True)
    for action in actions:
        if "add" in action:
            action["add"] |= {"path": named, "size": secret.stat().st_size, "stats": "{}"}
    log.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("way", ["dots", "encoded", "file", "folder"])
def test_rows_of_files_outside_of_a_table_are_not_shown(tmp_path: Path, way: str) -> None:
    secret, table = tmp_path / "secret.parquet", tmp_path / "lake" / "orders"
    pq.write_table(pa.table({"n": ["secret"]}), secret)
    write_deltalake(str(table), pa.table({"n": ["mine"]}))
    reveal(table, secret, way)
    found = open_readable(str(table))
    assert found is not None
    for read in (
        lambda: preview(found, limit=10),
        lambda: found.batches(["n"]).read_all(),
        lambda: read_rows(open_table(str(table)), columns=["n"]),
    ):
        with pytest.raises(PublishError) as caught:
            read()
        assert caught.value.code is ErrorCode.OUTSIDE_LAKE


def test_rows_of_a_plain_table_that_links_outside_are_not_shown(tmp_path: Path) -> None:
    games = SettledLake(tmp_path / "plain", format="parquet")
    games.batch({"chess": 3})
    table = games.lake / "silver_chess"
    secret = tmp_path / "secret.parquet"
    pq.write_table(pa.table({"move": ["secret"]}), secret)
    (table / "part-9.parquet").symlink_to(secret)
    with pytest.raises(PublishError) as caught:
        found = open_readable(str(table))
        assert found is not None
        preview(found, limit=10)
    assert caught.value.code is ErrorCode.OUTSIDE_LAKE


def test_table_that_is_a_link_is_not_shown(games: SettledLake, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_deltalake(str(other), pa.table({"n": ["secret"]}))
    shutil.rmtree(games.lake / "silver_chess")
    (games.lake / "silver_chess").symlink_to(other, target_is_directory=True)
    with pytest.raises(PublishError) as caught:
        open_readable(str(games.lake / "silver_chess"))
    assert caught.value.code is ErrorCode.OUTSIDE_LAKE


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("/lake/orders", "orders"),
        ("/lake/../etc", "etc"),
        ("/lake/a/../../b", "a/b"),
        ("/elsewhere/_distributary/../../x", "_distributary/x"),
        ("/elsewhere/..", ""),
        ("/lake//etc", "etc"),
    ],
)
def test_place_in_a_lake_is_in_the_lake(path: str, below: str) -> None:
    assert layout.inside("/lake", path) == below
