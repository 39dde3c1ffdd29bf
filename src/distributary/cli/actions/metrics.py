"""`metrics`, and serving them while a pipeline runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import TypeAdapter, ValidationError

from distributary.cli.logs import usage_error
from distributary.cli.output import Paper
from distributary.cli.verb import Invocation
from distributary.config.alerts import Listen
from distributary.engine.pipeline import Pipeline
from distributary.observe.metrics import CATALOGUE, Metrics, alert_rules, grafana_dashboard
from distributary.supervise.server import Address, Answers, serving


def show_metrics(call: Invocation, *, grafana: bool, rules: bool) -> None:
    """Print one of the three."""
    if grafana and rules:
        raise usage_error("--grafana and --rules exclude each other.", command="distributary")
    if grafana:
        text = grafana_dashboard()
        call.out.show({"dashboard": json.loads(text)}, lambda paper: paper.lines(text))
    elif rules:
        text = alert_rules()
        call.out.show({"rules": text}, lambda paper: paper.lines(text))
    else:
        call.out.show({"metrics": [_facts(metric) for metric in CATALOGUE]}, _draw_metrics)


@contextmanager
def measured(
    call: Invocation, pipeline: Pipeline, listen: str | None, token: str | None
) -> Iterator[None]:
    """Serve a pipeline's metrics while it runs, where the file or the command line asks for it."""
    settings = pipeline.config.metrics
    address = settings.listen if listen is None else _address(listen)
    if address is None:
        yield
        return
    metrics = Metrics(max_tables=settings.max_tables)
    answers = Answers(metrics=metrics.render, token=token)
    option = "metrics.listen" if listen is None else "--metrics"
    with serving(Address.parse(address), answers, option=option) as url:
        call.out.note(f"metrics at {url}/metrics")
        name = pipeline.config.name
        metrics.remember(name, pipeline.ledger().tables(name, schema_ids=False))
        detach = metrics.attach(pipeline.bus)
        try:
            yield
        finally:
            detach()


def _address(listen: str) -> str:
    try:
        return TypeAdapter(Listen).validate_python(listen)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise usage_error(f"--metrics {why}.", command="distributary run") from None


def _facts(metric: object) -> dict[str, object]:
    return {name: getattr(metric, name) for name in ("name", "kind", "labels", "help")}


def _draw_metrics(paper: Paper) -> None:
    rows = [(m.name, str(m.kind), ", ".join(m.labels), m.help) for m in CATALOGUE]
    paper.table(("metric", "kind", "labels", "what it says"), rows)
