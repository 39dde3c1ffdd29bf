"""What holds for every target that is files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.deploy.conftest import Write

DEPLOY = """\
deploy:
  kubernetes: {image: "registry.example/games:1.0"}
"""
TARGETS = ["airflow", "kubernetes", "notebooks", "spark-submit", "systemd"]


@pytest.fixture
def file(write: Write) -> Path:
    return write(DEPLOY)


def files_below(folder: Path) -> dict[str, str]:
    return {str(p): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("target", TARGETS)
def test_once_tried_once_done_twice_unchanged_then_gone(
    target: str, file: Path, cli: Cli, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_SECRET", "canary-kafka-password")
    out = own_folder / "out"
    line = (file, "--target", target, "--out", out)
    tried = cli("install", *line, "--dry-run", "--json")
    assert not out.exists()
    planned = {step["name"]: step["text"] for step in tried.json["steps"]}
    done = cli("install", *line)
    assert done.code == 0, done.err
    # what was shown is what is written
    assert files_below(out) == planned
    again = cli("install", *line)
    assert (again.code, again.out) == (0, f"unchanged: pipeline games on {target}\n")
    (out / "mine.txt").write_text("mine")
    listed = cli("uninstall", *line, "--dry-run", "--json").json["steps"]
    assert {step["name"] for step in listed} == set(planned)
    refused = cli("uninstall", *line)
    assert refused.code == 2 and "CONFIRMATION_NEEDED" in refused.err
    assert cli("uninstall", *line, "--yes").code == 0
    assert [p.name for p in out.iterdir()] == ["mine.txt"]
    assert cli("uninstall", *line, "--yes").out == "there is nothing to remove\n"
    said = json.dumps(planned) + done.out + done.err + tried.out + tried.err + refused.err
    assert "canary" not in said
    # an installed pipeline is never reset
    assert "reset" not in json.dumps(planned).replace("reset-", "")


def test_what_is_not_ours_is_never_overwritten_nor_removed(
    file: Path, cli: Cli, own_folder: Path
) -> None:
    unit = own_folder / "units" / "distributary-games.service"
    unit.parent.mkdir()
    line = (file, "--target", "systemd", "--out", unit.parent)
    for foreign in ("[Unit]\n", ""):
        unit.write_text(foreign)
        result = cli("install", *line, "--force", "--json")
        assert (result.code, result.json["error"]["code"]) == (1, "DEPLOY_CONFLICT")
        assert unit.read_text() == foreign
        assert cli("uninstall", *line, "--yes").out == "there is nothing to remove\n"
    unit.unlink()
    unit.symlink_to(own_folder / "elsewhere")
    assert cli("install", *line).code == 1
    assert not (own_folder / "elsewhere").exists()
    unit.unlink()
    unit.mkdir()
    assert cli("install", *line).code == 1


def test_a_file_of_another_pipeline_is_not_ours(write: Write, cli: Cli, own_folder: Path) -> None:
    name = "deploy: {systemd: {name: shared}}\n"
    one, two = write(name, name="one", file="one.yaml"), write(name, name="two", file="two.yaml")
    line = ("--target", "systemd", "--out", own_folder / "units")
    assert cli("install", one, *line).code == 0
    assert cli("install", two, *line, "--json").json["error"]["code"] == "DEPLOY_CONFLICT"
    assert cli("uninstall", two, *line, "--yes").out == "there is nothing to remove\n"


def test_an_edit_is_shown_and_kept_until_forced(file: Path, cli: Cli, own_folder: Path) -> None:
    line = (file, "--target", "systemd", "--out", own_folder / "units")
    cli("install", *line)
    unit = own_folder / "units" / "distributary-games.service"
    ours = unit.read_text()
    edited = ours.replace("RestartSec=15", "RestartSec=99\nEnvironment=API_TOKEN=canary")
    unit.write_text(edited)
    shown = cli("install", *line, "--dry-run")
    assert shown.code == 0
    assert "-RestartSec=99" in shown.out and "+RestartSec=15" in shown.out
    assert "canary" not in shown.out
    assert cli("install", *line, "--json").json["error"]["code"] == "DEPLOY_CONFLICT"
    assert unit.read_text() == edited
    assert cli("install", *line, "--force").code == 0
    assert unit.read_text() == ours


def test_what_an_earlier_configuration_left_is_removed(
    write: Write, cli: Cli, own_folder: Path
) -> None:
    units = own_folder / "units"
    line = ("--target", "systemd", "--out", units)
    cli("install", write("deploy: {systemd: {schedule: hourly}}\n"), *line)
    assert len(list(units.iterdir())) == 2
    steps = cli("install", write(), *line, "--dry-run", "--json").json["steps"]
    assert sorted(step["action"] for step in steps) == ["remove", "update"]
    cli("install", write(), *line)
    assert [path.name for path in units.iterdir()] == ["distributary-games.service"]
    # another name: the old unit goes, the new one comes
    cli("install", write("deploy: {systemd: {name: other}}\n"), *line)
    assert [path.name for path in units.iterdir()] == ["other.service"]


def test_a_crash_in_the_middle_is_made_good_by_the_next_try(
    file: Path, cli: Cli, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributary.store import disk as durable

    written: list[Path] = []
    whole = durable.replace

    def full(path: Path, data: bytes) -> None:
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(path)
        whole(path, data)

    line = (file, "--target", "kubernetes", "--out", own_folder / "k8s")
    monkeypatch.setattr(durable, "replace", full)
    result = cli("install", *line, "--json")
    assert (result.code, result.json["error"]["code"]) == (1, "DEPLOY_REFUSED")
    monkeypatch.setattr(durable, "replace", whole)
    steps = cli("install", *line, "--dry-run", "--json").json["steps"]
    assert [step["action"] for step in steps].count("unchanged") == 3
    assert cli("install", *line).code == 0
    assert cli("install", *line).out.startswith("unchanged")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_folder_that_may_not_be_written(file: Path, cli: Cli, own_folder: Path) -> None:
    units = own_folder / "units"
    units.mkdir(mode=0o500)
    result = cli("install", file, "--target", "systemd", "--out", units, "--json")
    assert (result.code, result.json["error"]["code"]) == (1, "DEPLOY_REFUSED")


@pytest.mark.parametrize(
    "line",
    [["--target", "nomad"], [], ["--target", "databricks", "--out", "x"]],
)
def test_wrong_usage(line: list[str], file: Path, cli: Cli) -> None:
    assert cli("install", file, *line).code == 2


@pytest.mark.parametrize(
    ("section", "warned"),
    [
        ("systemd: {}", True),
        ("systemd: {schedule: hourly}", False),
        ("kubernetes: {image: 'r/x:1'}", True),
        ("airflow: {}", False),
    ],
)
def test_a_service_that_would_end_at_once_is_warned_of(
    section: str, warned: bool, write: Write, cli: Cli
) -> None:
    path = write(f"deploy: {{{section}}}\n")
    path.write_text(path.read_text().replace("trigger: continuous", "trigger: available_now"))
    target = section.split(":")[0]
    shown = cli("install", path, "--target", target, "--dry-run")
    assert shown.code == 0
    assert ("trigger" in shown.err) is warned


def test_a_section_that_is_needed_is_named(write: Write, cli: Cli) -> None:
    for target in ("kubernetes", "databricks"):
        result = cli("install", write(), "--target", target, "--json")
        assert (result.code, result.json["error"]["code"]) == (2, "CONFIG_MISSING_KEY")


@pytest.mark.parametrize(
    ("target", "key"),
    [("kubernetes", "deploy.kubernetes.image"), ("databricks", "deploy.databricks.cluster")],
)
@pytest.mark.parametrize("lake", ["s3://bucket/lake", "/somewhere/lake"])
def test_a_trial_shows_what_would_be_written_though_a_key_is_missing(
    write: Write, cli: Cli, target: str, key: str, lake: str
) -> None:
    file = write(lake=lake)
    line = ("install", file, "--target", target)
    tried = cli(*line, "--dry-run", "--json")
    assert (tried.code, tried.json["missing"]) == (0, [key])
    shown = cli(*line, "--dry-run")
    assert f"<{key}>" in shown.out and f"warning: {key} is missing" in shown.err
    refused = cli(*line, "--json")
    assert (refused.code, refused.json["error"]["code"]) == (2, "CONFIG_MISSING_KEY")
