"""Files for the systems around: a dashboard for Grafana, alert rules for Prometheus."""

from __future__ import annotations

from importlib.resources import files

_FOLDER = "shipped"


def grafana_dashboard() -> str:
    """The dashboard, as JSON to import."""
    return _text("grafana-dashboard.json")


def alert_rules() -> str:
    """The rules, as YAML for `rule_files`."""
    return _text("alert-rules.yaml")


def _text(name: str) -> str:
    return files("distributary.observe").joinpath(_FOLDER, name).read_text(encoding="utf-8")
