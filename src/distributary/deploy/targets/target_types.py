"""The table of deploy targets: the value of `--target`, and the module of each.

A new target is its section in `config/deploy.py`, its module beside this one, and one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributary.deploy.targets.target_entry import TargetEntry

TARGETS: Mapping[str, str] = {
    "airflow": "distributary.deploy.targets.airflow",
    "databricks": "distributary.deploy.targets.databricks",
    "kubernetes": "distributary.deploy.targets.kubernetes",
    "lakeflow": "distributary.deploy.targets.lakeflow",
    "notebooks": "distributary.deploy.targets.notebooks",
    "spark-submit": "distributary.deploy.targets.spark_submit",
    "systemd": "distributary.deploy.targets.systemd",
}
"""The module with the `ENTRY` of each target, by name; imported on first use."""


def target_entry(name: str) -> TargetEntry:
    """Return the entry of a target."""
    entry: TargetEntry = import_module(TARGETS[name]).ENTRY
    return entry
