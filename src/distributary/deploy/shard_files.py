"""The pipeline files of the jobs that share a pipeline's types, made of the pipeline's own file.

References stay references, and what is not about the division stays as it is.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, cast

from distributary.config.document import parse
from distributary.config.metrics import host_and_port
from distributary.config.problems import printable
from distributary.config.shard import MOST_SHARDS, Part, job_name
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.yaml_text import to_yaml
from distributary.errors import ConfigError
from distributary.route.naming import DEAD_LETTERS

Tree = dict[str, Any]

_DERIVED = re.compile(r"shard-([0-9]{1,3})\.yaml")
_LISTEN = re.compile(r"(?:[^:\s$]+:|\[[0-9A-Fa-f:.]+\]:)?[0-9]{1,5}")
_NAMES = (
    ("databricks", "job_name"),
    ("systemd", "name"),
    ("airflow", "dag_id"),
    ("kubernetes", "name"),
)
"""Names in the deploy section that no two jobs may share."""
_OF_ANY_SOURCE: tuple[str, ...] = ("max_records_per_batch", "tombstones")
"""What is said of the pipeline's source and holds for bronze, too."""


def shards_folder(pipeline: Installable) -> Path:
    """Where the files of the jobs are: beside the pipeline's own."""
    return pipeline.path.with_name(f"{pipeline.path.stem}.shards")


def file_of(folder: Path, pipeline: str, part: Part) -> Path:
    """The file of one job."""
    return folder / f"{job_name(pipeline, part)}.yaml"


def numbers_in(folder: Path, pipeline: str) -> tuple[int, ...]:
    """The shards that have a file, from this installation or an earlier one."""
    stem = f"{pipeline}-"
    names = [p.name.removeprefix(stem) for p in folder.glob("*.yaml") if p.name.startswith(stem)]
    found = (int(match[1]) for name in names if (match := _DERIVED.fullmatch(name)))
    return tuple(sorted(number for number in found if number < MOST_SHARDS))


def parts_of(pipeline: Installable, numbers: range | tuple[int, ...]) -> tuple[Part, ...]:
    """The jobs: one that lands, the shards, and one for the unified table where there is one."""
    unified = bool(_section(_tree(pipeline), "tables").get("unified"))
    return ("bronze", *numbers, *(("unified",) if unified else ()))


def derived(pipeline: Installable, part: Part, *, shards: int) -> str:
    """The text of one job's file."""
    tree = _tree(pipeline)
    tables = _section(tree, "tables")
    # who may read what is one matter for all jobs: the pipeline's own file says it
    tree.pop("grants", None)
    name = job_name(pipeline.name, part)
    if part == "bronze":
        _keep_bronze(tree, tables)
        tree["shard"] = {"of": pipeline.name, "part": part, "shards": shards}
    else:
        tree["source"] = _bronze_source(tree, tables, pipeline)
        tree["shard"] = {"of": pipeline.name, "part": part}
        _keep_rest(tree, tables, part)
        _move_ports(tree, 1 if part == "unified" else 2 + int(part))
        _rename(tree, pipeline, part)
    _point_airflow(tree, pipeline, name)
    return to_yaml({"name": name, **{key: tree[key] for key in tree if key != "name"}})


def _tree(pipeline: Installable) -> Tree:
    tree, _ = parse(pipeline.text, file=printable(str(pipeline.path)))
    return cast(Tree, tree.without_unset().plain())


def _section(tree: Tree, name: str) -> Tree:
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def _keep_bronze(tree: Tree, tables: Tree) -> None:
    for name in ("each", "unified", "prefix", "names"):
        tables.pop(name, None)
    _partition_by_date_only(tables)
    tree.pop("expectations", None)


def _keep_rest(tree: Tree, tables: Tree, part: Part) -> None:
    tables.pop("bronze", None)
    if part == "unified":
        for name in ("each", "prefix", "names"):
            tables.pop(name, None)
        _partition_by_date_only(tables)
        tree.pop("expectations", None)
        # what it cannot write a shard cannot either, and a letter is sent again by its own job
        tables["dead_letters"] = f"{tables.get('dead_letters', DEAD_LETTERS)}_unified"
    else:
        tables.pop("unified", None)


def _partition_by_date_only(tables: Tree) -> None:
    """Other columns partition the tables per type, which are not here."""
    wanted = tables.pop("partition_by", ())
    names = wanted.split(",") if isinstance(wanted, str) else wanted
    if "_date" in [str(name).strip() for name in names]:
        tables["partition_by"] = ["_date"]


def _bronze_source(tree: Tree, tables: Tree, pipeline: Installable) -> Tree:
    lake, bronze = _section(tree, "lake").get("path"), tables.get("bronze")
    if not isinstance(lake, str) or not isinstance(bronze, str):
        raise ConfigError(
            "the file itself must name its lake and its bronze table",
            where=f"{pipeline.path.name} lake.path, tables.bronze",
            next_step="write them there; ${env:...} is fine",
        )
    before = _section(tree, "source")
    kept: Tree = {key: before[key] for key in _OF_ANY_SOURCE if key in before}
    return {
        "type": "delta",
        "path": f"{lake.rstrip('/')}/{bronze}",
        "value": "payload",
        "key": "key",
        "headers": "headers",
        "timestamp": "_timestamp",
        **kept,
    }


def _move_ports(tree: Tree, by: int) -> None:
    """Jobs of one machine cannot listen at one address."""
    for section in (_section(tree, "metrics"), _section(_section(tree, "deploy"), "systemd")):
        address = section.get("listen")
        if address is None:
            continue
        if not _LISTEN.fullmatch(str(address)):
            # a reference: what it holds is known elsewhere, and only one job can have it
            del section["listen"]
            continue
        host, port = host_and_port(str(address))
        section["listen"] = f"{host}:{port + by}" if host else str(port + by)


def _rename(tree: Tree, pipeline: Installable, part: Part) -> None:
    deploy = _section(tree, "deploy")
    ending = job_name(pipeline.name, part).removeprefix(pipeline.name)
    for target, key in _NAMES:
        section = _section(deploy, target)
        if key in section:
            section[key] = f"{section[key]}{ending}"
    databricks = _section(deploy, "databricks")
    if "folder" in databricks:
        databricks["folder"] = f"{str(databricks['folder']).rstrip('/')}/{ending.lstrip('-')}"


def _point_airflow(tree: Tree, pipeline: Installable, name: str) -> None:
    """Where the workers find the file: beside the pipeline's own, as here."""
    airflow = _section(_section(tree, "deploy"), "airflow")
    if "file" in airflow:
        there = PurePosixPath(str(airflow["file"]))
        airflow["file"] = str(there.with_name(f"{there.stem}.shards") / f"{name}.yaml")
