"""`install --shards`: what is written for the jobs that share a pipeline's types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributary.config.load import load_text
from distributary.config.shard import Part, job_name
from distributary.deploy.file_targets import StepAction, refuse_conflicts
from distributary.deploy.pipeline_file import Installable, read_for_install
from distributary.deploy.shards import (
    ShardsTarget,
    derived,
    installed_shards,
    numbers_in,
    refuse_single,
    removal_target,
    shards_folder,
    spread_target,
)
from distributary.errors import ConfigError, DeployError, ErrorCode
from distributary.observe.ledger.ledger import Ledger

SECRET = {"KAFKA_SECRET": "geheim"}
GAMES = """\
name: games
source:
  type: kafka
  bootstrap_servers: 127.0.0.1:9092
  topics: [wrapper]
  tombstones: skip
  security:
    {protocol: SASL_SSL, mechanism: PLAIN, username: me, password: "${env:KAFKA_SECRET}"}
registry: {path: ./schemas}
envelope: {subject: wrapper-value, type: game_name}
payload: {format: protobuf}
tables: {bronze: bronze_events, each: "silver_{type}", partition_by: [_type, _date, country]}
lake: {path: ./lake}
trigger: continuous
"""
Make = Callable[..., Installable]


@pytest.fixture
def games(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`games("deploy: {...}")` is a pipeline that can be spread."""
    monkeypatch.setenv("KAFKA_SECRET", SECRET["KAFKA_SECRET"])

    def make(extra: str = "", *, text: str = GAMES, **changed: str) -> Installable:
        for old, new in changed.items():
            assert old in text
            text = text.replace(old, new)
        path = own_folder / "games.yaml"
        path.write_text(text + extra)
        return read_for_install(path)

    return make


def spread(
    pipeline: Installable,
    shards: int,
    *,
    to: str = "systemd",
    done: bool = False,
    letters: tuple[int, ...] = (),
) -> ShardsTarget:
    return spread_target(
        to,
        pipeline,
        shards=shards,
        out=Path("out") if to != "databricks" else None,
        is_done=lambda number: done,
        has_letters=lambda number: number in letters,
    )


def install(pipeline: Installable, shards: int, **how: Any) -> ShardsTarget:
    place = spread(pipeline, shards, **how)
    steps = place.plan()
    refuse_conflicts(steps, force=False)
    place.apply(steps)
    return place


def written(folder: str = ".") -> list[str]:
    return sorted(str(p) for p in Path(folder).rglob("*") if p.is_file())


def test_all_jobs_know_where_a_record_names_its_type(games: Make) -> None:
    short = {
        "registry: {path: ./schemas}\nenvelope: {subject: wrapper-value, type: game_name}\n": "",
        "{format: protobuf}": "{format: json}",
        "silver_{type}": "silver_{header:kind}",
    }
    pipeline = games(**short)
    parts: tuple[Part, ...] = ("bronze", 0, 1)
    for part in parts:
        config = load_text(derived(pipeline, part, shards=2), environ=SECRET).config
        assert config.envelope is not None and config.envelope.type == "{header:kind}"
        assert config.tables.each == (None if part == "bronze" else "silver_{type}")


def test_one_job_lands_and_the_others_read_what_it_landed(games: Make) -> None:
    pipeline = games()
    bronze = load_text(derived(pipeline, "bronze", shards=2), environ=SECRET).config
    assert (bronze.name, bronze.source.type, bronze.topics) == ("games", "kafka", ("wrapper",))
    assert (bronze.tables.bronze, bronze.tables.each) == ("bronze_events", None)
    assert bronze.tables.partition_by == ("_type", "_date")
    assert bronze.shard is not None
    assert (bronze.shard.part, bronze.shard.shards) == ("bronze", 2)
    shard = load_text(derived(pipeline, 1, shards=2), environ={}).config
    assert (shard.name, shard.tables.bronze, shard.tables.each) == (
        "games-shard-1",
        None,
        "silver_{type}",
    )
    assert shard.source.type == "delta"
    assert shard.source.path == "./lake/bronze_events"
    assert shard.source.tombstones == "skip"
    assert shard.tables.partition_by == ("_date", "country")
    assert shard.lake == bronze.lake


def test_references_stay_references_and_a_secret_in_clear_is_refused(games: Make) -> None:
    install(games(), 2)
    assert "${env:KAFKA_SECRET}" in Path("games.shards/games.yaml").read_text()
    for path in written("games.shards") + written("out"):
        assert SECRET["KAFKA_SECRET"] not in Path(path).read_text()
    with pytest.raises(ConfigError):
        install(games(**{'"${env:KAFKA_SECRET}"': "geheim"}), 2)


def test_values_that_only_other_machines_know_are_no_hindrance(
    games: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    games()
    monkeypatch.delenv("KAFKA_SECRET")
    install(read_for_install(Path("games.yaml")), 2)
    assert "${env:KAFKA_SECRET}" in Path("games.shards/games.yaml").read_text()


def test_a_unified_table_is_the_work_of_one_job_more(games: Make) -> None:
    pipeline = games(**{"bronze: bronze_events": "bronze: bronze_events, unified: gold"})
    install(pipeline, 1)
    assert written("games.shards") == [
        "games.shards/games-shard-0.yaml",
        "games.shards/games-unified.yaml",
        "games.shards/games.yaml",
    ]
    tables = load_text(Path("games.shards/games-unified.yaml").read_text(), environ={}).config
    assert (tables.tables.each, tables.tables.dead_letters) == (None, "dead_letters_unified")
    shard = load_text(Path("games.shards/games-shard-0.yaml").read_text(), environ={}).config
    assert shard.tables.unified is None


@pytest.mark.parametrize("target", ["systemd", "airflow", "kubernetes", "spark-submit"])
def test_done_twice_nothing_changes_and_uninstall_leaves_nothing(games: Make, target: str) -> None:
    pipeline = games("deploy: {kubernetes: {image: registry.example/games:1.0}}\n")
    before = written()
    install(pipeline, 2, to=target)
    assert {step.action for step in spread(pipeline, 2, to=target).plan()} == {StepAction.UNCHANGED}
    place = removal_target(target, pipeline, out=Path("out"))
    assert place is not None
    assert len(set(place.last_steps)) == len(place.last_steps)
    place.remove(place.plan_removal())
    assert written() == before
    assert removal_target(target, pipeline, out=Path("out")) is None


def test_more_jobs_touch_only_the_file_of_the_bronze_job(games: Make) -> None:
    install(games(), 2)
    steps = {Path(step.name).name: step.action for step in spread(games(), 4).plan()}
    assert {name for name, action in steps.items() if action is StepAction.CREATE} == {
        "games-shard-2.yaml",
        "games-shard-3.yaml",
        "distributary-games-shard-2.service",
        "distributary-games-shard-3.service",
    }
    assert [n for n, a in steps.items() if a is StepAction.UPDATE] == ["games.yaml"]


def test_a_superfluous_job_goes_when_it_is_done_and_not_before(games: Make) -> None:
    install(games(), 3)
    place = install(games(), 1)
    assert place.kept == ("games-shard-1", "games-shard-2")
    assert numbers_in(shards_folder(games()), "games") == (0, 1, 2)
    install(games(), 1, done=True, letters=(2,))
    assert numbers_in(shards_folder(games()), "games") == (0, 2)
    install(games(), 1, done=True)
    assert numbers_in(shards_folder(games()), "games") == (0,)
    assert written("out") == [
        "out/distributary-games-shard-0.service",
        "out/distributary-games.service",
    ]
    assert installed_shards(games()) == 1


def test_names_and_ports_of_the_deploy_section_are_told_apart(games: Make) -> None:
    extra = """\
metrics: {listen: "[::1]:9464"}
deploy:
  systemd: {name: spiele, listen: "127.0.0.1:9108"}
  airflow: {dag_id: spiele, file: /etc/games.yaml}
  databricks: {job_name: spiele, folder: /Shared/games, serverless: true}
  kubernetes: {image: registry.example/games:1.0, name: spiele}
"""
    pipeline = games(extra)
    parts = [load_text(derived(pipeline, p, shards=2), environ=SECRET).config for p in (0, 1)]
    bronze = load_text(derived(pipeline, "bronze", shards=2), environ=SECRET).config
    seen: dict[str, set[object]] = {}
    for config in (bronze, *parts):
        deploy = config.deploy
        assert deploy is not None
        assert deploy.systemd and deploy.airflow and deploy.databricks and deploy.kubernetes
        seen.setdefault("metrics", set()).add(config.metrics.listen)
        seen.setdefault("unit", set()).add(deploy.systemd.name)
        seen.setdefault("health", set()).add(deploy.systemd.listen)
        seen.setdefault("dag", set()).add(deploy.airflow.dag_id)
        seen.setdefault("file", set()).add(deploy.airflow.file)
        seen.setdefault("job", set()).add(deploy.databricks.job_name)
        seen.setdefault("folder", set()).add(deploy.databricks.folder)
        seen.setdefault("object", set()).add(deploy.kubernetes.name)
    assert {name: len(values) for name, values in seen.items()} == dict.fromkeys(seen, 3)
    assert "/etc/games.shards/games-shard-1.yaml" in seen["file"]
    assert seen["metrics"] == {"[::1]:9464", "[::1]:9466", "[::1]:9467"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bronze: bronze_events, ", ""),
        ("silver_{type}", "silver_{record}"),
        ("silver_{type}", "silver_{topic}"),
        ("bronze: bronze_events", "format: parquet, bronze: bronze_events"),
    ],
)
def test_what_cannot_be_spread_is_refused(games: Make, old: str, new: str) -> None:
    with pytest.raises(ConfigError):
        spread(games(**{old: new}), 2)


def test_a_part_is_not_spread_again(games: Make) -> None:
    install(games(), 2)
    with pytest.raises(ConfigError):
        spread(read_for_install(Path("games.shards/games-shard-0.yaml")), 2)


def test_one_job_is_not_installed_beside_several(games: Make) -> None:
    refuse_single(games())
    install(games(), 2)
    with pytest.raises(ConfigError):
        refuse_single(games())


def test_a_file_that_somebody_edited_or_wrote_is_not_replaced(games: Make) -> None:
    install(games(), 2)
    path = Path("games.shards/games-shard-0.yaml")
    path.write_text(path.read_text() + "# mine\n")
    with pytest.raises(DeployError) as caught:
        install(games(), 3)
    assert caught.value.code is ErrorCode.DEPLOY_CONFLICT
    path.write_text("name: other\n")
    with pytest.raises(DeployError):
        install(games(), 2)


def test_a_job_that_bears_another_name_is_refused(games: Make) -> None:
    text = derived(games(), 0, shards=2)
    assert load_text(text, environ={}).config.name == job_name("games", 0)
    for wrong in (
        text.replace("games-shard-0", "games-shard-1"),
        text.replace("part: 0", "part: 256"),
        text + "  shards: 2\n",
        text.replace("tables:\n", "tables:\n  bronze: bronze_events\n"),
    ):
        with pytest.raises(ConfigError):
            load_text(wrong, environ={})


def test_two_jobs_in_a_workspace(games: Make, workspace: Any) -> None:
    host = f"{{databricks: {{host: '{workspace.url}', serverless: true}}}}"
    pipeline = games(f"deploy: {host}\n")
    place = spread(pipeline, 2, to="databricks")
    place.apply(place.plan())
    again = spread(pipeline, 2, to="databricks")
    assert {step.action for step in again.plan()} == {StepAction.UNCHANGED}
    gone = removal_target("databricks", pipeline)
    assert gone is not None
    assert len([step for step in gone.plan_removal() if step.kind == "job"]) == 3
    gone.remove(gone.plan_removal())


@pytest.mark.usefixtures("nobody")
def test_without_a_login_jobs_of_a_workspace_are_only_shown(games: Make, cli: Any) -> None:
    place = {"./lake": "/Volumes/main/games/lake"}
    games("deploy: {databricks: {cluster: {spark_version: 18.x}}}\n", **place)
    line = ("install", "games.yaml", "--target", "databricks", "--shards", "2")
    shown = cli(*line, "--dry-run", "--json")
    assert shown.code == 0, shown.err
    assert [step["kind"] for step in shown.json["steps"]].count("job") == 3
    assert cli(*line).code == 2
    assert written() == ["games.yaml"]


def test_the_command_shows_what_moves(games: Make, cli: Any, monkeypatch: Any) -> None:
    games()
    how = ("install", "games.yaml", "--target", "systemd", "--out", "out", "--shards")
    first = cli(*how, "2", "--json")
    assert first.json["changed"] is True
    assert first.json["moves"] == []
    Path("lake").mkdir()
    known = [f"type_{number}" for number in range(40)]
    tables = [SimpleNamespace(type=name, pipeline="games-shard-1") for name in known]
    monkeypatch.setattr(Ledger, "tables", lambda *_, **__: tables)
    shown = cli(*how, "3", "--dry-run", "--json").json
    assert (shown["shards_before"], shown["shards"], shown["changed"]) == (2, 3, False)
    assert 0 < len(shown["moves"]) < 40
    assert {move["to"] for move in shown["moves"]} == {2}
    assert "games-shard-2" not in " ".join(written())
    assert cli("install", "games.yaml", "--target", "systemd", "--out", "out").code == 2
    text = cli(*how, "3", "--dry-run").out
    assert "moves" in text
    gone = cli("uninstall", "games.yaml", "--target", "systemd", "--out", "out", "--yes", "--json")
    assert gone.json["removed"] is True
    assert written() == ["games.yaml"]
