from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from databricks.sdk.service.jobs import JobSettings

from distributary.config.deploy import Databricks
from distributary.deploy.databricks_job import job_settings
from distributary.deploy.databricks_target import Places, like
from distributary.deploy.file_targets import marked
from distributary.deploy.package import WHEEL
from tests.cli.conftest import Cli
from tests.deploy.conftest import Write
from tests.deploy.workspace import TOKEN, USER, Refused, Workspace, serving

FOLDER = f"/Users/{USER}/.distributary/games"
NOBODYS = "/Users/{you}/.distributary/games"
LINE = ("--target", "databricks")

DEPLOY = """\
deploy:
  databricks:
    host: {url}
    cluster:
      spark_version: 18.x-scala2.13
      node_type: i3.xlarge
      workers: 2
      env: {{KAFKA_SECRET: "{{{{secrets/kafka/password}}}}"}}
    schedule: "0 0 * * * ?"
    timezone: Europe/Berlin
    retries: 5
    retry_wait: 2m
    notifications: {{on_failure: [data@example.com]}}
    tags: {{team: data}}
{more}"""


@pytest.fixture
def file(write: Write, workspace: Workspace) -> Path:
    return write(DEPLOY.format(url=workspace.url, more=""))


def test_install_makes_one_job_with_everything_of_the_file(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    result = cli("install", file, *LINE)
    assert result.code == 0, result.err
    ((_, job),) = workspace.jobs.items()
    (task,) = job["tasks"]
    assert job["name"] == "games"
    assert job["max_concurrent_runs"] == 1
    assert job["schedule"] == {
        "quartz_cron_expression": "0 0 * * * ?",
        "timezone_id": "Europe/Berlin",
        "pause_status": "UNPAUSED",
    }
    assert job["email_notifications"] == {"on_failure": ["data@example.com"]}
    assert job["tags"]["team"] == "data"
    assert (task["max_retries"], task["min_retry_interval_millis"]) == (5, 120_000)
    assert task["new_cluster"]["num_workers"] == 2
    assert task["new_cluster"]["spark_env_vars"] == {"KAFKA_SECRET": "{{secrets/kafka/password}}"}
    assert task["libraries"] == [{"requirements": f"/Workspace{FOLDER}/requirements.txt"}]
    python = task["spark_python_task"]
    assert python["python_file"] == f"/Workspace{FOLDER}/launch.py"
    assert python["parameters"] == ["run", f"/Workspace{FOLDER}/games.yaml", "--available-now"]
    # the file is passed on with its references
    assert "${env:KAFKA_SECRET}" in workspace.files[f"{FOLDER}/games.yaml"]
    texts = [text for name, text in workspace.files.items() if not name.endswith(".whl")]
    assert "reset" not in json.dumps(job) + "".join(texts)


def test_installing_twice_gives_one_job_and_says_unchanged(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    assert cli("install", file, *LINE).code == 0
    workspace.asked.clear()
    again = cli("install", file, *LINE)
    assert (again.code, again.out) == (0, "unchanged: pipeline games on databricks\n")
    assert len(workspace.jobs) == 1
    assert workspace.changes() == []
    assert cli("install", file, *LINE, "--json").json["changed"] is False


def test_a_change_of_the_file_is_an_update_of_the_same_job(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    cli("install", file, *LINE)
    (before,) = workspace.jobs
    file.write_text(file.read_text().replace("retries: 5", "retries: 7"))
    tried = cli("install", file, *LINE, "--dry-run", "--json").json
    assert {s["action"] for s in tried["steps"]} == {"update", "unchanged"}
    assert cli("install", file, *LINE).code == 0
    assert list(workspace.jobs) == [before]
    assert workspace.jobs[before]["tasks"][0]["max_retries"] == 7


def test_a_new_name_renames_the_job(file: Path, cli: Cli, workspace: Workspace) -> None:
    cli("install", file, *LINE)
    (before,) = workspace.jobs
    file.write_text(file.read_text() + "    job_name: other\n")
    assert cli("install", file, *LINE).code == 0
    assert {key: job["name"] for key, job in workspace.jobs.items()} == {before: "other"}


def test_a_dry_run_changes_nothing_and_shows_everything(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    shown = cli("install", file, *LINE, "--dry-run")
    assert shown.code == 0
    assert workspace.changes() == [] and not workspace.jobs
    assert "quartz_cron_expression" in shown.out
    assert "bootstrap_servers" in shown.out
    assert "from distributary.cli import main" in shown.out


def definition(**settings: Any) -> dict[str, Any]:
    """A job as it would be sent, understood by the SDK to the last field."""
    section = Databricks.model_validate(settings)
    job = job_settings("games", section, Places("/Workspace/l.py", "/Workspace/g.yaml", "/W/r.txt"))
    assert JobSettings.from_dict(job).as_dict() == job
    return job


@pytest.mark.parametrize(
    ("more", "check"),
    [
        ({}, lambda job: job["tasks"][0]["environment_key"] == "default"),
        ({"continuous": True}, lambda job: job["continuous"] == {"pause_status": "UNPAUSED"}),
        ({"continuous": True}, lambda job: "max_retries" not in job["tasks"][0]),
        ({"continuous": True, "paused": True}, lambda job: "'PAUSED'" in str(job)),
        ({"timeout": "1h"}, lambda job: job["timeout_seconds"] == 3600),
        ({"package": "/Volumes/a.whl"}, lambda job: "/Volumes/a.whl" in str(job["environments"])),
        ({}, lambda job: job["environments"][0]["spec"]["dependencies"] == ["-r /W/r.txt"]),
        ({}, lambda job: job["environments"][0]["spec"]["environment_version"] == "5"),
    ],
)
def test_serverless(more: dict[str, Any], check: Callable[[dict[str, Any]], bool]) -> None:
    job = definition(serverless=True, **more)
    assert check(job)
    assert "new_cluster" not in job["tasks"][0]
    # without a clock, the trigger of the file says when a run ends
    assert "--available-now" not in str(job)


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"id": "0123-abc"}, {"existing_cluster_id": "0123-abc"}),
        ({"spark_version": "x", "workers": 0}, {"custom_tags": {"ResourceClass": "SingleNode"}}),
        (
            {"spark_version": "x", "min_workers": 1, "max_workers": 4, "policy": "P1"},
            {"autoscale": {"min_workers": 1, "max_workers": 4}, "policy_id": "P1"},
        ),
        (
            {"spark_version": "x", "spot": True, "zone": "auto", "instance_profile": "arn:x"},
            {
                "aws_attributes": {
                    "availability": "SPOT_WITH_FALLBACK",
                    "first_on_demand": 1,
                    "zone_id": "auto",
                    "instance_profile_arn": "arn:x",
                }
            },
        ),
        (
            {"spark_version": "x", "instance_pool": "p1", "driver_instance_pool": "p2"},
            {"instance_pool_id": "p1", "driver_instance_pool_id": "p2"},
        ),
        (
            {"spark_version": "x", "node_type": "a", "driver_node_type": "b"},
            {"node_type_id": "a", "driver_node_type_id": "b"},
        ),
    ],
)
def test_kinds_of_clusters(cluster: dict[str, Any], expected: dict[str, Any]) -> None:
    (task,) = definition(cluster=cluster)["tasks"]
    assert expected.items() <= (task | task.get("new_cluster", {})).items()


@pytest.mark.parametrize(
    ("host", "attributes"),
    [
        ("https://adb-1.azuredatabricks.net", {"azure_attributes": "SPOT_WITH_FALLBACK_AZURE"}),
        ("https://1.gcp.databricks.com", {"gcp_attributes": "PREEMPTIBLE_WITH_FALLBACK_GCP"}),
    ],
)
def test_spot_machines_have_the_name_of_their_cloud(host: str, attributes: dict[str, str]) -> None:
    (task,) = definition(host=host, cluster={"spark_version": "x", "spot": True})["tasks"]
    (name, availability), cluster = *attributes.items(), task["new_cluster"]
    assert cluster[name]["availability"] == availability
    assert "aws_attributes" not in cluster


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a@example.com", {"user_name": "a@example.com"}),
        ("6a-1", {"service_principal_name": "6a-1"}),
    ],
)
def test_the_job_runs_as_its_user(name: str, expected: dict[str, str]) -> None:
    assert definition(run_as=name, serverless=True)["run_as"] == expected


def test_install_starts_a_run_of_the_one_job(file: Path, cli: Cli, workspace: Workspace) -> None:
    result = cli("install", file, *LINE, "--run", "--json")
    assert result.code == 0, result.err
    (number,) = workspace.jobs
    assert workspace.requests("/jobs/run-now") == [{"job_id": number}]
    assert json.loads(result.out)["run"] == f"{workspace.url}/jobs/{number}/runs/1"
    # also when there is nothing to change
    assert cli("install", file, *LINE, "--run").code == 0
    assert len(workspace.requests("/jobs/run-now")) == 2 and len(workspace.jobs) == 1


@pytest.mark.parametrize(
    "line",
    [
        ("--target", "systemd", "--run"),
        ("--target", "systemd", "--as", "bundle"),
        (*LINE, "--as", "bundle", "--run"),
        (*LINE, "--as", "terraform", "--shards", "2"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    file: Path, cli: Cli, workspace: Workspace, line: tuple[str, ...]
) -> None:
    assert cli("install", file, *line).code == 2
    assert not workspace.changes()


@pytest.mark.parametrize(
    ("package", "library"),
    [
        (None, {"requirements": "/W/r.txt"}),
        ("/Volumes/main/libs/r.txt", {"requirements": "/Volumes/main/libs/r.txt"}),
        ("/Volumes/main/libs/d.whl", {"whl": "/Volumes/main/libs/d.whl"}),
        ("distributary==0.1.0", {"pypi": {"package": "distributary==0.1.0"}}),
    ],
)
def test_what_a_cluster_installs(package: str | None, library: dict[str, Any]) -> None:
    (task,) = definition(cluster={"id": "0123"}, package=package)["tasks"]
    assert task["libraries"] == [library]


def test_the_schema_of_the_tables_is_one_of_the_catalog() -> None:
    (task,) = definition(cluster={"spark_version": "18.x"}, catalog="main")["tasks"]
    assert "main" in task["new_cluster"]["spark_conf"].values()


def test_the_wheel_is_uploaded_with_what_it_needs(
    file: Path, cli: Cli, workspace: Workspace, tmp_path: Path
) -> None:
    assert cli("install", file, *LINE).code == 0
    content = workspace.wheels[f"{FOLDER}/{WHEEL}"]
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        asked = archive.read(name).decode()
    # the runtime has its own Spark, and would get another one
    assert "Requires-Dist: deltalake" in asked and "Requires-Dist: pyspark" not in asked
    text = workspace.files[f"{FOLDER}/requirements.txt"]
    named = [line for line in text.splitlines() if line[:1] not in " #"]
    assert named[0].startswith(f"/Workspace{FOLDER}/{WHEEL} --hash=sha256:")
    assert hashlib.sha256(content).hexdigest() in named[0]
    assert not [line for line in named if line.startswith(("pyspark", "py4j"))]
    # each of the others by version and checksum, or pip refuses all of them
    assert len(named) > 40
    assert all("==" in line and line.endswith("\\") for line in named[1:])


def test_pip_takes_the_requirements(
    file: Path, cli: Cli, workspace: Workspace, tmp_path: Path
) -> None:
    cli("install", file, *LINE)
    # a name with @, as those of the workspace's users are
    place = tmp_path / USER
    place.mkdir()
    (place / WHEEL).write_bytes(workspace.wheels[f"{FOLDER}/{WHEEL}"])
    text = workspace.files[f"{FOLDER}/requirements.txt"]
    (place / "requirements.txt").write_text(text.replace(f"/Workspace{FOLDER}", str(place)))

    def pip() -> subprocess.CompletedProcess[str]:
        line = ["-m", "pip", "install", "--dry-run", "--no-index", "--require-hashes", "-r"]
        return subprocess.run(
            [sys.executable, *line, str(place / "requirements.txt")],
            capture_output=True,
            text=True,
            check=False,
        )

    assert pip().returncode == 0, pip().stderr
    with (place / WHEEL).open("ab") as wheel:
        wheel.write(b"something else")
    assert "DO NOT MATCH THE HASHES" in pip().stderr


def test_a_wheel_of_somebody_else_is_left_alone(file: Path, cli: Cli, workspace: Workspace) -> None:
    cli("install", file, *LINE)
    # one of ours, of another installation
    content = b"an older wheel"
    requirements = f"{FOLDER}/requirements.txt"
    ours = hashlib.sha256(workspace.wheels[f"{FOLDER}/{WHEEL}"]).hexdigest()
    body = workspace.files[requirements].split("\n", 1)[1]
    older = body.replace(ours, hashlib.sha256(content).hexdigest())
    workspace.files[requirements] = marked(older, target="databricks", pipeline="games")
    workspace.wheels[f"{FOLDER}/{WHEEL}"] = content
    steps = cli("install", file, *LINE, "--dry-run", "--json").json["steps"]
    assert {s["name"]: s["action"] for s in steps}[f"{FOLDER}/{WHEEL}"] == "update"
    workspace.wheels[f"{FOLDER}/{WHEEL}"] = b"nobody knows"
    refused = cli("install", file, *LINE, "--force", "--json")
    assert refused.json["error"]["code"] == "DEPLOY_CONFLICT"
    kinds = [s["kind"] for s in cli("uninstall", file, *LINE, "--dry-run", "--json").json["steps"]]
    assert "wheel" not in kinds


def test_the_mark_tells_definitions_apart() -> None:
    one, two = definition(serverless=True), definition(serverless=True, retries=9)
    assert one == definition(serverless=True)
    assert one["tags"] != two["tags"]


def test_two_jobs_of_one_name_are_refused_with_their_ids(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    ids = [workspace.add_job({"name": "games"}) for _ in range(2)]
    for _ in range(5):
        workspace.add_job({"name": "Games"})
    result = cli("install", file, *LINE, "--json")
    assert result.code == 1
    error = result.json["error"]
    assert error["code"] == "DEPLOY_CONFLICT"
    assert all(str(key) in error["evidence"] for key in ids)
    assert workspace.changes() == []


def test_a_job_of_somebody_else_is_not_touched(file: Path, cli: Cli, workspace: Workspace) -> None:
    key = workspace.add_job({"name": "games", "max_concurrent_runs": 9})
    assert cli("install", file, *LINE, "--force", "--json").json["error"]["code"] == (
        "DEPLOY_CONFLICT"
    )
    assert workspace.jobs[key] == {"name": "games", "max_concurrent_runs": 9}
    assert cli("uninstall", file, *LINE, "--dry-run", "--json").json["steps"] == []


def test_a_job_of_the_same_name_in_other_letters_is_another(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    for _ in range(5):
        workspace.add_job({"name": "GAMES"})
    assert cli("install", file, *LINE).code == 0
    assert len(workspace.jobs) == 6


@pytest.mark.parametrize(
    "edit",
    [
        lambda job: job["tasks"][0].update(max_retries=99),
        lambda job: job["schedule"].update(pause_status="PAUSED"),
        lambda job: job.update(trigger={"file_arrival": {"url": "s3://x/"}}),
    ],
)
def test_an_edit_is_shown_and_kept_until_forced(
    file: Path, cli: Cli, workspace: Workspace, edit: Callable[[dict[str, Any]], None]
) -> None:
    cli("install", file, *LINE)
    (key,) = workspace.jobs
    edit(workspace.jobs[key])
    edited = json.loads(json.dumps(workspace.jobs[key]))
    shown = cli("install", file, *LINE, "--dry-run", "--json").json["steps"]
    (step,) = [step for step in shown if step["action"] == "edited"]
    assert step["diff"]
    assert cli("install", file, *LINE, "--json").json["error"]["code"] == "DEPLOY_CONFLICT"
    assert workspace.jobs[key] == edited
    assert cli("install", file, *LINE, "--force").code == 0
    assert cli("install", file, *LINE).out.startswith("unchanged")


def test_an_edit_is_also_seen_when_the_file_changed_too(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    cli("install", file, *LINE)
    (key,) = workspace.jobs
    workspace.jobs[key]["max_concurrent_runs"] = 4
    file.write_text(file.read_text().replace("retries: 5", "retries: 7"))
    assert cli("install", file, *LINE, "--json").json["error"]["code"] == "DEPLOY_CONFLICT"


def test_an_edited_file_of_the_workspace_is_shown(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    cli("install", file, *LINE)
    workspace.files[f"{FOLDER}/games.yaml"] += "# mine\n"
    assert cli("install", file, *LINE).code == 1
    workspace.files[f"{FOLDER}/games.yaml"] = "not ours"
    steps = cli("install", file, *LINE, "--dry-run", "--json").json["steps"]
    assert [step["action"] for step in steps] == ["foreign", *["unchanged"] * 4]


def test_a_lost_answer_makes_no_second_job(file: Path, cli: Cli, workspace: Workspace) -> None:
    lost = []

    def lose(method: str, path: str) -> None:
        if path.endswith("jobs/create") and not lost:
            lost.append(path)
            raise ConnectionAbortedError

    workspace.after = lose
    assert cli("install", file, *LINE).code == 0
    assert lost and len(workspace.requests("jobs/create")) == 2
    assert len(workspace.jobs) == 1
    assert cli("install", file, *LINE).out.startswith("unchanged")


def test_who_asks_too_often_waits(file: Path, cli: Cli, workspace: Workspace) -> None:
    seen: list[str] = []

    def busy(method: str, path: str) -> None:
        seen.append(path)
        if seen.count(path) == 1:
            raise Refused(429, "REQUEST_LIMIT_EXCEEDED")

    workspace.before = busy
    assert cli("install", file, *LINE).code == 0
    assert len(workspace.jobs) == 1
    # of one request it is our own code that waits: the job may have been made
    assert len(workspace.waited) == len(set(seen)) - 1


@pytest.mark.parametrize(
    ("status", "code", "expected", "exit_code"),
    [
        (403, "PERMISSION_DENIED", "DEPLOY_REFUSED", 1),
        (500, "INTERNAL_ERROR", "DEPLOY_UNAVAILABLE", 75),
        (400, "INVALID_PARAMETER_VALUE", "DEPLOY_REFUSED", 1),
    ],
)
def test_what_the_workspace_says_is_told(
    file: Path,
    cli: Cli,
    workspace: Workspace,
    status: int,
    code: str,
    expected: str,
    exit_code: int,
) -> None:
    def spoil(method: str, path: str) -> None:
        if path.endswith("jobs/create"):
            raise Refused(status, code, "no \x1b[31mway")

    workspace.before = spoil
    result = cli("install", file, *LINE, "--json")
    assert result.code == exit_code
    assert result.json["error"]["code"] == expected
    assert "\x1b" not in result.json["error"]["evidence"]
    # the second try goes on from where the first one ended
    workspace.before = lambda method, path: None
    assert cli("install", file, *LINE).code == 0
    assert len(workspace.jobs) == 1


def test_a_wrong_login_and_none_are_told_apart(
    file: Path, cli: Cli, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABRICKS_TOKEN", "canary-wrong-token")
    wrong = cli("install", file, *LINE, "--json")
    assert (wrong.code, wrong.json["error"]["code"]) == (1, "DEPLOY_REFUSED")
    assert "canary" not in wrong.out + wrong.err
    monkeypatch.delenv("DATABRICKS_TOKEN")
    nobody = cli("install", file, *LINE, "--json")
    assert (nobody.code, nobody.json["error"]["code"]) == (2, "CONFIG_INVALID")


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("host", [False, True])
def test_a_dry_run_shows_everything_where_nobody_is_logged_in(
    write: Write, cli: Cli, host: bool
) -> None:
    with serving() as workspace:
        url = f"host: {workspace.url}, " if host else ""
        path = write(f"deploy: {{databricks: {{{url}cluster: {{spark_version: 18.x}}}}}}\n")
        shown = cli("install", path, *LINE, "--dry-run")
        said = cli("install", path, *LINE, "--dry-run", "--json")
        assert not workspace.asked
    assert (shown.code, said.code) == (0, 0), shown.err + said.err
    unknown = "not compared: there is no login to a workspace"
    for name in (f"workspace file {NOBODYS}/games.yaml", f"workspace file {NOBODYS}/launch.py"):
        assert f"create    {name}  ({unknown})\n" in shown.out
    assert f"create    job games  ({unknown})\n" in shown.out
    assert "bootstrap_servers" in shown.out
    assert "from distributary.cli import main" in shown.out
    assert shown.out.endswith("5 create\n")
    steps = said.json["steps"]
    assert [(s["kind"], s["action"], s["why"]) for s in steps] == [
        (kind, "create", unknown) for kind in (*["workspace file"] * 3, "wheel", "job")
    ]
    assert "${env:KAFKA_SECRET}" in steps[0]["text"]
    (task,) = json.loads(steps[4]["text"])["tasks"]
    assert task["spark_python_task"]["python_file"] == f"/Workspace{NOBODYS}/launch.py"


@pytest.mark.usefixtures("nobody")
def test_a_dry_run_without_a_login_keeps_a_folder_that_is_given(write: Write, cli: Cli) -> None:
    path = write(
        "deploy: {databricks: {folder: /Workspace/Shared/x, cluster: {spark_version: 18.x}}}\n"
    )
    steps = cli("install", path, *LINE, "--dry-run", "--json").json["steps"]
    files = ("games.yaml", "launch.py", "requirements.txt", WHEEL)
    assert [s["name"] for s in steps] == [*(f"/Shared/x/{name}" for name in files), "games"]


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize(
    "line",
    [("install",), ("install", "--force"), ("uninstall", "--dry-run"), ("uninstall", "--yes")],
)
def test_without_a_login_nothing_else_goes(write: Write, cli: Cli, line: tuple[str, ...]) -> None:
    verb, *flags = line
    path = write("deploy: {databricks: {cluster: {spark_version: 18.x}}}\n")
    refused = cli(verb, path, *LINE, *flags)
    assert (refused.code, refused.out) == (2, "")
    assert "there are no credentials for Databricks" in refused.err
    assert "deploy.databricks.host" in refused.err


def test_a_dry_run_with_a_login_that_fails_is_an_error(
    file: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DATABRICKS_TOKEN", "canary-wrong-token")
    wrong = cli("install", file, *LINE, "--dry-run", "--json")
    assert (wrong.code, wrong.json["error"]["code"]) == (1, "DEPLOY_REFUSED")
    # a profile that is named and not in the file
    config = tmp_path / "config"
    config.write_text("[other]\nhost = http://127.0.0.1:1\n")
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(config))
    monkeypatch.setenv("DATABRICKS_CONFIG_PROFILE", "mine")
    named = cli("install", file, *LINE, "--dry-run", "--json")
    assert (named.code, named.json["error"]["code"]) == (2, "CONFIG_INVALID")
    assert "mine" in named.json["error"]["evidence"]


def test_uninstall_removes_what_was_written_and_nothing_else(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    other = workspace.add_job({"name": "other"})
    cli("install", file, *LINE)
    workspace.files[f"{FOLDER}/mine.txt"] = "mine"
    listed = cli("uninstall", file, *LINE, "--dry-run", "--json").json["steps"]
    assert [step["kind"] for step in listed] == ["job", "wheel", *["workspace file"] * 4]
    refused = cli("uninstall", file, *LINE)
    assert refused.code == 2 and "CONFIRMATION_NEEDED" in refused.err
    assert len(workspace.jobs) == 2
    assert cli("uninstall", file, *LINE, "--yes").code == 0
    assert list(workspace.jobs) == [other]
    assert list(workspace.files) == [f"{FOLDER}/mine.txt"]
    assert cli("uninstall", file, *LINE, "--yes").out == "there is nothing to remove\n"


def test_no_secret_leaves(
    write: Write, cli: Cli, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_SECRET", "canary-kafka-password")
    path = write(DEPLOY.format(url=workspace.url, more=""))
    said = [cli("install", path, *LINE, flag) for flag in ("--dry-run", "--json", "-v")]
    said.append(cli("uninstall", path, *LINE, "--yes", "--json"))
    sent = json.dumps(workspace.asked, default=str) + str(workspace.files)
    for secret in ("canary-kafka-password", TOKEN):
        assert secret not in sent
        assert not [each for each in said if secret in each.out + each.err]


def test_a_secret_in_clear_is_refused(write: Write, cli: Cli, workspace: Workspace) -> None:
    path = write(DEPLOY.format(url=workspace.url, more=""))
    path.write_text(path.read_text().replace("${env:KAFKA_SECRET}", "canary-in-clear"))
    result = cli("install", path, *LINE, "--json")
    assert result.code == 2
    assert result.json["error"]["evidence"] == "source.security.password"
    assert "canary" not in result.out + result.err
    assert workspace.changes() == []


@pytest.mark.parametrize(
    "line",
    [
        'cluster: {spark_version: x, env: {KAFKA_SECRET: "canary-clear"}}',
        'cluster: {spark_version: x, env: {A: "${file:secret.txt}"}}',
        'cluster: {spark_version: x, env: {A: "${databricks:scope/key}"}}',
        "serverless: true\n    cluster: {spark_version: x}",
        "serverless: true\n    schedule: hourly",
        "serverless: true\n    schedule: 0 0 * * * ?\n    continuous: true",
        "serverless: true\n    continuous: true\n    retries: 2",
        "serverless: true\n    tags: {distributary_x: y}",
        "serverless: true\n    folder: ../x",
        "cluster: {spark_version: x, min_workers: 1}",
        "cluster: {id: x, workers: 1}",
        "host: http://user:canary-pw@h\n    serverless: true",
    ],
)
def test_a_section_that_cannot_work_is_refused(write: Write, cli: Cli, line: str) -> None:
    Path("secret.txt").write_text("canary-file")
    result = cli("install", write(f"deploy:\n  databricks:\n    {line}\n"), *LINE, "--json")
    assert result.code == 2
    assert "canary" not in result.out + result.err


def test_without_the_extra_there_is_a_line_to_paste(
    file: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("distributary.deploy.databricks_workspace.import_module", none)
    result = cli("install", file, *LINE, "--json")
    assert (result.code, result.json["error"]["code"]) == (1, "EXTRA_MISSING")
    assert result.json["error"]["next_step"] == "pip install 'distributary[databricks]'"


def test_only_what_was_asked_for_is_compared() -> None:
    ours = {"name": "x", "tasks": [{"task_key": "run", "max_retries": 1}]}
    there = {"name": "x", "format": "MULTI_TASK", "tasks": [{**ours["tasks"][0], "run_if": "ALL"}]}  # type: ignore[dict-item]
    assert like(there, ours) == ours
    assert like({**there, "schedule": {"a": 1}}, ours) != ours
    assert like({**there, "tasks": []}, ours) != ours
    assert JobSettings.from_dict(ours).as_dict() == ours
