"""The job of a pipeline as an asset bundle and as a configuration of Terraform."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import jsonschema_rs
import pytest
import yaml
from databricks.sdk.service.jobs import JobSettings
from databricks.sdk.service.pipelines import PipelineSpec

from distributary.deploy.file_targets import FileTarget, open_target
from distributary.deploy.pipeline_file import Installable
from distributary.errors import ConfigError, ErrorCode

Make = Callable[..., Installable]

CLUSTER = """\
deploy:
  databricks:
    host: https://example.cloud.databricks.com
    run_as: data-team@example.com
    cluster: {spark_version: 18.x-scala2.13, node_type: i3.xlarge, workers: 2, spot: true}
    schedule: "0 0 * * * ?"
    notifications: {on_failure: [data-team@example.com]}
"""
SERVERLESS = "deploy: {databricks: {serverless: true, continuous: true}}\n"
OWN = "deploy: {databricks: {serverless: true, folder: /Shared/x, package: distributary==0.1.0}}\n"
LAKEFLOW = "deploy: {lakeflow: {catalog: main, schema: games, node_type: i3.xlarge, workers: 2}}\n"
ALL = pytest.mark.parametrize("extra", [CLUSTER, SERVERLESS, OWN], ids=["cluster", "less", "own"])


def written(
    installable: Make, extra: str, form: str, own_folder: Path, name: str = "databricks"
) -> FileTarget:
    out = own_folder / "out"
    target = open_target(name, installable(extra), out=out, form=form)
    assert isinstance(target, FileTarget)
    target.apply(target.plan())
    assert not [step for step in target.plan() if step.changes]
    return target


@ALL
def test_a_bundle_has_a_job_that_the_sdk_knows(
    installable: Make, own_folder: Path, extra: str
) -> None:
    target = written(installable, extra, "bundle", own_folder)
    bundle = yaml.safe_load((target.folder / "databricks.yml").read_text())
    ((key, job),) = bundle["resources"]["jobs"].items()
    assert JobSettings.from_dict(job).as_dict() == job
    assert key == "games" and bundle["bundle"] == {"name": "games"}
    # everything that the job names is in the folder, or is what `package` writes
    named = set(re.findall(r"\$\{workspace\.file_path\}/([^\s\"']+)", json.dumps(job)))
    there = {path.name for path in target.folder.iterdir()}
    assert {"launch.py", "games.yaml"} <= named
    missing = named - there
    assert all(name.endswith(".whl") and name in target.next_steps[0] for name in missing)
    assert f"databricks bundle run {key}" in target.next_steps[-1]


def test_a_declarative_pipeline_is_a_bundle_too(installable: Make, own_folder: Path) -> None:
    target = written(installable, LAKEFLOW, "bundle", own_folder, "lakeflow")
    bundle = yaml.safe_load((target.folder / "databricks.yml").read_text())
    ((key, definition),) = bundle["resources"]["pipelines"].items()
    assert (key, definition["catalog"], definition["schema"]) == ("games", "main", "games")
    assert PipelineSpec.from_dict(definition).as_dict() == definition
    named = set(re.findall(r"\$\{workspace\.file_path\}/([^\s\"']+)", json.dumps(bundle)))
    there = {path.name for path in target.folder.iterdir()}
    assert {"tables.py", "games.yaml", "requirements.txt"} <= named & there
    assert all(name.endswith(".whl") and name in target.next_steps[0] for name in named - there)
    with pytest.raises(ConfigError):
        written(installable, LAKEFLOW, "terraform", own_folder, "lakeflow")


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        (CLUSTER, "databricks"),
        (SERVERLESS, "databricks"),
        (OWN, "databricks"),
        (LAKEFLOW, "lakeflow"),
    ],
)
@pytest.mark.skipif(shutil.which("databricks") is None, reason="there is no CLI of Databricks")
def test_a_bundle_fits_the_schema_of_the_cli(
    installable: Make, own_folder: Path, extra: str, name: str
) -> None:
    target = written(installable, extra, "bundle", own_folder, name)
    bundle = yaml.safe_load((target.folder / "databricks.yml").read_text())
    printed = subprocess.run(["databricks", "bundle", "schema"], capture_output=True, check=True)
    # its patterns are those of Go, which Python's own do not include
    fits = jsonschema_rs.validator_for(json.loads(printed.stdout))
    assert [error.message for error in fits.iter_errors(bundle)] == []


@ALL
def test_terraform_has_the_same_job_in_its_own_words(
    installable: Make, own_folder: Path, extra: str
) -> None:
    target = written(installable, extra, "terraform", own_folder)
    document = json.loads((target.folder / "main.tf.json").read_text())
    assert document.keys() <= {"//", "terraform", "provider", "data", "resource"}
    ((_, job),) = document["resource"]["databricks_job"].items()
    (task,) = job["task"]
    again = job | {"tasks": [{("libraries" if k == "library" else k): v for k, v in task.items()}]}
    again |= {"environments": job["environment"]} if "environment" in job else {}
    plain = {k: v for k, v in again.items() if k not in ("task", "environment")}
    assert JobSettings.from_dict(plain).as_dict() == plain
    files = document["resource"]["databricks_workspace_file"]
    used = set(re.findall(r"databricks_workspace_file\.([a-z]+)\.path", json.dumps(job)))
    assert used == set(files)
    for file in files.values():
        name = file["source"].removeprefix("${path.module}/")
        assert (target.folder / name).is_file() or name in target.next_steps[0]
        assert file["path"].endswith(f"/{name}")


def test_secrets_stay_references(installable: Make, own_folder: Path) -> None:
    for form in ("bundle", "terraform"):
        target = written(installable, CLUSTER, form, own_folder / form)
        assert "${env:KAFKA_SECRET}" in (target.folder / "games.yaml").read_text()


def test_what_was_installed_is_removed_and_nothing_else(
    installable: Make, own_folder: Path
) -> None:
    target = written(installable, CLUSTER, "bundle", own_folder)
    (target.folder / "notes.txt").write_text("mine")
    target.remove(target.plan_removal())
    assert [path.name for path in target.folder.iterdir()] == ["notes.txt"]


TEMPLATES = CLUSTER.replace("spot: true", "spot: true, spark_conf: {spark.a: '$${file(1)}%{if}'}")


def test_no_text_of_the_file_is_evaluated_by_another_tool(
    installable: Make, own_folder: Path
) -> None:
    target = written(installable, TEMPLATES, "terraform", own_folder)
    document = json.loads((target.folder / "main.tf.json").read_text())
    ((_, job),) = document["resource"]["databricks_job"].items()
    (task,) = job["task"]
    assert task["new_cluster"]["spark_conf"]["spark.a"] == "$${file(1)}%%{if}"
    assert task["spark_python_task"]["python_file"].startswith("/Workspace${databricks_workspace")
    with pytest.raises(ConfigError) as refused:
        written(installable, TEMPLATES, "bundle", own_folder)
    assert refused.value.code is ErrorCode.DEPLOY_UNFIT


@pytest.mark.parametrize("folder", ["/Shared/a b", "/Shared/${x}", "/Shared/a;b", "/Shared/../x"])
def test_a_folder_that_would_be_more_than_a_path_is_refused(installable: Make, folder: str) -> None:
    with pytest.raises(ConfigError):
        installable(OWN.replace("/Shared/x", f"'{folder.replace('$', '$$')}'"))
