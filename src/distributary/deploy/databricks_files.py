"""What runs a pipeline as an asset bundle of Databricks, and a job as configuration of Terraform.

Both are files of one folder: the same definition that `install` sends through the API, beside the
files that run. Their own tools deploy them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distributary.config.deploy import Databricks, DatabricksAccess
from distributary.config.file.document import to_yaml
from distributary.deploy import package
from distributary.deploy.databricks_job import TASK, job_section, job_settings
from distributary.deploy.databricks_pipeline import pipeline_section, pipeline_settings
from distributary.deploy.databricks_target import Places, Settings
from distributary.deploy.file_targets import Artifact, FileTarget, template
from distributary.deploy.pipeline_file import Installable
from distributary.errors import ConfigError, ErrorCode

_LAUNCHER, _TABLES, _REQUIREMENTS = "launch.py", "tables.py", "requirements.txt"
_BUNDLE_FILES = "${workspace.file_path}"
_HOME = "${data.databricks_current_user.me.home}"
_TEMPLATE = re.compile(r"([$%])(?=\{)")
# The blocks of Terraform's resource are named in the singular.
_BLOCKS = {"tasks": "task", "environments": "environment", "libraries": "library"}


def bundle_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """Return the target with an asset bundle of the job, which the CLI of Databricks deploys."""
    settings = job_section(pipeline)
    job = job_settings(pipeline.name, settings, _bundle_places(pipeline, _LAUNCHER))
    _refuse_references(pipeline, job)
    job = _with_wheel(job, settings, _BUNDLE_FILES)
    folder = out or Path(f"{pipeline.name}-databricks-bundle")
    return _bundle("databricks", pipeline, settings, folder, {"jobs": job}, _LAUNCHER)


def lakeflow_bundle_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """Return the target with an asset bundle of the declarative pipeline."""
    settings = pipeline_section(pipeline)
    places = _bundle_places(pipeline, _TABLES)
    definition = pipeline_settings(pipeline.name, settings, places)
    _refuse_references(pipeline, definition)
    if settings.package is None:
        definition["environment"]["dependencies"].append(f"{_BUNDLE_FILES}/{package.WHEEL}")
    folder = out or Path(f"{pipeline.name}-lakeflow-bundle")
    return _bundle("lakeflow", pipeline, settings, folder, {"pipelines": definition}, _TABLES)


def _bundle_places(pipeline: Installable, program: str) -> Places:
    names = (program, f"{pipeline.name}.yaml", _REQUIREMENTS)
    return Places(*(f"{_BUNDLE_FILES}/{name}" for name in names))


def _bundle(
    target: str,
    pipeline: Installable,
    settings: DatabricksAccess,
    folder: Path,
    resources: Mapping[str, Settings],
    program: str,
) -> FileTarget:
    folder, key = folder.absolute(), _key(pipeline.name)
    bundle: dict[str, Any] = {
        "bundle": {"name": pipeline.name},
        **({"workspace": {"host": settings.host}} if settings.host else {}),
        # a .gitignore may leave out wheels
        "sync": {"include": ["*.whl"]},
        "resources": {kind: {key: definition} for kind, definition in resources.items()},
        "targets": {"default": {"default": True}},
    }
    place = shlex.quote(str(folder))
    return FileTarget(
        f"{target}-bundle",
        pipeline.name,
        folder,
        (
            Artifact(folder / "databricks.yml", to_yaml(bundle)),
            *_files(pipeline, settings, folder, program),
        ),
        ("*.yml", "*.yaml", "*.py", "*.txt"),
        next_steps=(
            *([package.packing(folder)] if settings.package is None else []),
            f"(cd {place} && databricks bundle deploy)",
            f"(cd {place} && databricks bundle run {key})",
        ),
        last_steps=(f"(cd {place} && databricks bundle destroy)",),
    )


def terraform_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """Return the target with a configuration of Terraform, for Databricks' own provider."""
    settings = job_section(pipeline)
    folder = (out or Path(f"{pipeline.name}-databricks-terraform")).absolute()
    base = settings.folder or f"{_HOME}/.distributary/{pipeline.name}"
    base = base.removeprefix("/Workspace")
    names = {"launcher": _LAUNCHER, "pipeline": f"{pipeline.name}.yaml"}
    if settings.package is None:
        names |= {"requirements": _REQUIREMENTS, "wheel": package.WHEEL}
    files = {
        key: {"source": f"${{path.module}}/{name}", "path": f"{base}/{name}"}
        for key, name in names.items()
    }
    inside = {key: f"/Workspace${{databricks_workspace_file.{key}.path}}" for key in names}
    places = Places(inside["launcher"], inside["pipeline"], inside.get("requirements", ""))
    job = _with_wheel(
        job_settings(pipeline.name, settings, places), settings, inside.get("wheel", ""), whole=True
    )
    job = _literal(job, ours=re.compile(f"({'|'.join(map(re.escape, inside.values()))})"))
    document = {
        "terraform": {"required_providers": {"databricks": {"source": "databricks/databricks"}}},
        "provider": {"databricks": {"host": settings.host} if settings.host else {}},
        "data": {"databricks_current_user": {"me": {}}},
        "resource": {
            "databricks_workspace_file": files,
            "databricks_job": {_key(pipeline.name): _as_blocks(job)},
        },
    }
    place = shlex.quote(str(folder))
    return FileTarget(
        "databricks-terraform",
        pipeline.name,
        folder,
        (
            # Terraform allows comments under this name only
            Artifact(folder / "main.tf.json", _as_json(document), comment="//"),
            *_files(pipeline, settings, folder, _LAUNCHER),
        ),
        ("*.json", "*.yaml", "*.py", "*.txt"),
        next_steps=(
            *([package.packing(folder)] if settings.package is None else []),
            f"terraform -chdir={place} init",
            f"terraform -chdir={place} apply",
        ),
        last_steps=(f"terraform -chdir={place} destroy",),
    )


def _files(
    pipeline: Installable, settings: DatabricksAccess, folder: Path, program: str
) -> Iterator[Artifact]:
    yield Artifact(folder / f"{pipeline.name}.yaml", pipeline.shared_text)
    yield Artifact(folder / program, template(f"{program}.txt"))
    if settings.package is None:
        yield Artifact(folder / _REQUIREMENTS, package.locked())


def _with_wheel(
    job: Settings, settings: Databricks, place: str, *, whole: bool = False
) -> Settings:
    """Return the job with the wheel beside its requirements; `whole` means that `place` names it.

    The path in the workspace is only known there, so the requirements cannot name the wheel.
    """
    if settings.package is not None:
        return job
    wheel = place if whole else f"{place}/{package.WHEEL}"
    for task in job["tasks"]:
        if "libraries" in task:
            task["libraries"] = [*task["libraries"], {"whl": wheel}]
    for environment in job.get("environments", ()):
        environment["spec"]["dependencies"].append(wheel)
    return job


def _as_blocks(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's definition with the names of Terraform's blocks."""
    blocks = {_BLOCKS.get(name, name): value for name, value in job.items()}
    blocks["task"] = [
        {_BLOCKS.get(name, name): value for name, value in task.items()} for task in job["tasks"]
    ]
    return blocks


def _refuse_references(pipeline: Installable, job: Settings) -> None:
    """Raise ConfigError for a text that a bundle would replace; it has no way to escape one."""
    text = json.dumps(job).replace(_BUNDLE_FILES, "")
    if "${" in text:
        raise ConfigError(
            "a bundle replaces ${...} in its texts",
            code=ErrorCode.DEPLOY_UNFIT,
            where=f"{pipeline.path.name} deploy",
            next_step="leave ${ out of names and settings, or leave out --as bundle",
        )


def _literal(node: Any, *, ours: re.Pattern[str]) -> Any:
    """Return a definition in which Terraform evaluates no text but our own references."""
    if isinstance(node, Mapping):
        return {_literal(k, ours=ours): _literal(item, ours=ours) for k, item in node.items()}
    if isinstance(node, list):
        return [_literal(item, ours=ours) for item in node]
    if not isinstance(node, str):
        return node
    # every other part is a reference of ours
    parts = enumerate(ours.split(node))
    return "".join(p if at % 2 else _TEMPLATE.sub(r"\1\1", p) for at, p in parts)


def _as_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _key(pipeline: str) -> str:
    """Return the pipeline's name as a key of bundles and of Terraform."""
    named = pipeline if pipeline[:1].isalpha() else f"{TASK}_{pipeline}"
    return re.sub(r"[^A-Za-z0-9_]", "_", named)
