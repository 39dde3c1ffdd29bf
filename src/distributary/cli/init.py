"""`init`: looks at a topic, a table or a folder, and writes the pipeline file for it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distributary.cli.command.lakes import open_registry
from distributary.cli.command.output import Paper, program, styled
from distributary.cli.command.verb import START, DryRun, Invocation, argument, option, single, verb
from distributary.cli.plan import draw_preview
from distributary.errors import ConfigError, DistributaryError, ErrorCode

if TYPE_CHECKING:
    from distributary.config.load import Loaded
    from distributary.operations.discovery import Finding
    from distributary.operations.plan.trial_registry import Preview
    from distributary.source.source_sample import Sample

app = single(START)

_SCHEMA = "pipeline.schema.json"
_TABLES_SHOWN = 8
_ATTEMPTS = 2
_KINDS = ("kafka", "delta", "files")
_NOT_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 100
_SECURITY = {
    "security.protocol": "protocol",
    "sasl.mechanism": "mechanism",
    "sasl.mechanisms": "mechanism",
    "sasl.username": "username",
    "sasl.password": "password",
    "ssl.ca.location": "ca_location",
    "ssl.certificate.location": "certificate_location",
    "ssl.key.location": "key_location",
    "ssl.key.password": "key_password",
}
"""Settings of Kafka's clients that have a setting of their own."""

_Options = Annotated[
    list[str] | None,
    option("--kafka-option", "A setting of the Kafka clients; may be repeated.", metavar="K=V"),
]


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The options that name the place of the records."""

    path: Annotated[
        str | None,
        argument(
            "A Delta table or a folder of files, instead of --delta or --files.", metavar="PATH"
        ),
    ] = None
    kafka: Annotated[
        str | None, option("--kafka", "Address of a Kafka broker.", metavar="HOST:PORT")
    ] = None
    topic: Annotated[str | None, option("--topic", "The topic to sample.", metavar="TOPIC")] = None
    registry: Annotated[
        str | None,
        option("--registry", "Address of the schema registry, or a folder.", metavar="URL|DIR"),
    ] = None
    delta: Annotated[str | None, option("--delta", "A Delta table.", metavar="PATH")] = None
    files: Annotated[str | None, option("--files", "A folder of files.", metavar="PATH")] = None
    kafka_option: _Options = None
    registry_option: Annotated[
        list[str] | None,
        option(
            "--registry-option",
            "username, password, token or another setting of `registry`; may be repeated.",
            metavar="K=V",
        ),
    ] = None
    storage_option: Annotated[
        list[str] | None,
        option("--storage-option", "A setting of the bucket; may be repeated.", metavar="K=V"),
    ] = None


@verb(
    app,
    "init --kafka 127.0.0.1:9092 --topic orders --registry http://127.0.0.1:8081/apis/ccompat/v7",
    "init distributary-demo/wrapper --registry distributary-demo/schemas --output mine.yaml",
    "init --kafka broker:9093 --topic orders --kafka-option security.protocol=SASL_SSL "
    "--kafka-option sasl.mechanism=PLAIN --kafka-option 'sasl.username=${env:KAFKA_KEY}' "
    "--kafka-option 'sasl.password=${env:KAFKA_SECRET}'",
)
def init(
    call: Invocation,
    place: SourcePlace,
    output: Annotated[
        Path, option("--output -o", "The pipeline file to write.", metavar="FILE")
    ] = Path("pipeline.yaml"),
    name: Annotated[
        str | None, option("--name", "Name of the pipeline; the topic's name when left out.")
    ] = None,
    lake: Annotated[
        str, option("--lake", "Folder or address of the new lake.", metavar="DIR")
    ] = "./lake",
    force: Annotated[bool, option("--force", "Overwrite an existing file.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Sample records, recognise their format, and write a pipeline file for them.

    Secrets are written as variables: --kafka-option 'sasl.password=${env:NAME}'.
    """
    from distributary.config.load import load_text
    from distributary.operations.discovery import document, pipeline_text

    given = _asked(call, place)
    if output.exists() and not (force or dry_run):
        raise ConfigError(
            "a file of this name exists",
            where=str(output),
            next_step="name another file with --output, or overwrite it with --force",
        )
    sections = _sections(call, given) | {"lake": {"path": lake}}
    draft = _draft(call, sections)
    sample, findings = _look(call, sections, draft)
    sections["source"] |= sample.settings
    wanted = document(sections, name or _name_of(sample.topic), findings)
    text = pipeline_text(wanted, findings, looked_at=sample.looked_at, schema=_SCHEMA)
    # a file that does not load is a defect of init: this raises, and nothing is written
    load_text(text, file=str(output), needs=())
    data: dict[str, Any] = {
        "file": None if dry_run else str(output),
        "looked_at": sample.looked_at,
        "findings": findings,
        "pipeline": text,
    }
    if dry_run:
        call.out.show(data, lambda paper: paper.lines(text))
        return
    _write(output, text, force=force)
    plan = _planned(call, output)
    data["plan"] = None if plan is None else plan.as_dict()
    call.out.show(data, lambda paper: _draw(paper, sample, findings, output, lake, plan))


# The options of the command, and questions about missing ones.


def _asked(call: Invocation, place: SourcePlace) -> SourcePlace:
    """Complete the place of the records by questions, if there is a terminal."""
    named = [n for n in ("path", *_KINDS) if getattr(place, n) is not None]
    if len(named) > 1:
        raise call.usage(f"Use only one of {' and '.join(named)}.")
    if place.topic is not None and named not in ([], ["kafka"]):
        raise call.usage("--topic needs --kafka.")
    if not named:
        _need_terminal(call, "Where are the records? Use --kafka with --topic, or a PATH.")
        kind = _prompt(f"Where are the records ({', '.join(_KINDS)})?", "kafka")
        if kind not in _KINDS:
            raise call.usage(f"{kind!r} is not one of {', '.join(_KINDS)}.")
        match kind:
            case "kafka":
                place = replace(place, kafka=_prompt("Broker", "127.0.0.1:9092"))
            case "delta":
                place = replace(place, delta=_prompt("Path of the table", None))
            case _:
                return replace(place, files=_prompt("Folder", None))
        if place.registry is None:
            place = replace(place, registry=_prompt("Schema registry (empty: none)", "") or None)
    return place


def _need_terminal(call: Invocation, message: str) -> None:
    if not sys.stdin.isatty() or call.out.is_json:
        raise call.usage(message)


def _prompt(question: str, default: str | None) -> str:
    return str(typer.prompt(question, default=default, err=True)).strip()


def _sections(call: Invocation, place: SourcePlace) -> dict[str, dict[str, Any]]:
    """Return the sections of the file for the given options, with their references unresolved."""
    storage = _pairs(call, "--storage-option", place.storage_option)
    source: dict[str, Any]
    if place.kafka is not None:
        source = {"type": "kafka", "bootstrap_servers": place.kafka}
        source |= _client(_pairs(call, "--kafka-option", place.kafka_option))
        source["topics"] = [place.topic or _chosen_topic(call, source)]
    else:
        source = _of_path(place, storage)
        source |= {"storage_options": storage} if storage else {}
    sections = {"source": source}
    if place.registry is not None:
        remote = place.registry.startswith(("http://", "https://", "${"))
        more = _pairs(call, "--registry-option", place.registry_option)
        sections["registry"] = {"url" if remote else "path": place.registry, **more}
    return sections


def _of_path(place: SourcePlace, storage: Mapping[str, str]) -> dict[str, Any]:
    from distributary.store.base import local_path

    path = place.path or place.delta or place.files or ""
    folder = local_path(path)
    is_table = place.delta is not None
    if place.path is not None:
        # a path in a bucket is a Delta table here: folders of files there are named by --files
        is_table = folder is None or (folder / "_delta_log").is_dir()
    if is_table:
        return {"type": "delta", "path": path}
    if folder is None:
        return {"type": "files", "discovery": "discovery-bucket", "bucket": path}
    return {"type": "files", "path": path}


def _client(options: Mapping[str, str]) -> dict[str, Any]:
    security = {_SECURITY[name]: text for name, text in options.items() if name in _SECURITY}
    others = {
        f"kafka.{name.removeprefix('kafka.')}": text
        for name, text in options.items()
        if name not in _SECURITY
    }
    return {key: part for key, part in (("security", security), ("options", others)) if part}


def _pairs(call: Invocation, flag: str, given: Sequence[str] | None) -> dict[str, str]:
    from distributary.config.base import is_secret_name

    found = {}
    for each in given or ():
        key, mark, value = each.partition("=")
        if not mark or not key.strip():
            raise call.usage(f"{flag} must be KEY=VALUE.")
        if is_secret_name(key) and "${" not in value:
            # the message leaves the value out, so that no log of ours contains it
            name = re.sub(r"\W", "_", key).upper()
            raise call.usage(f"{flag} {key} is a secret: write it as '{key}=${{env:{name}}}'.")
        found[key.strip()] = value
    return found


def _chosen_topic(call: Invocation, source: Mapping[str, Any]) -> str:
    from distributary.config.sources.kafka import kafka_of
    from distributary.source.kafka.broker import Broker

    draft = _draft(call, {"source": {**source, "topics": ["any"]}, "lake": {"path": "./lake"}})
    kafka = kafka_of(draft.config.source)
    assert kafka is not None  # noqa: S101
    names = Broker(kafka.client_options()).names()
    known = f"{', '.join(names[:20])}{' and more' if len(names) > 20 else ''}" or "none"
    _need_terminal(call, f"Which topic? Name it with --topic. There are: {known}.")
    call.out.note(f"topics: {known}")
    return _prompt("Topic", names[0] if len(names) == 1 else None)


def _draft(call: Invocation, sections: Mapping[str, Any]) -> Loaded:
    """Return the given settings with the values of their variables; nothing is written."""
    from distributary.config.file.document import to_yaml
    from distributary.config.load import load_text
    from distributary.config.sources.source_types import settings_of

    rest = settings_of(sections["source"]["type"]).trial_sections
    text = to_yaml({"name": "init", **sections, **rest})
    loaded = load_text(text, file="what was typed", needs=("source", "registry"))
    before = call.out.mask
    call.out.mask = lambda text: loaded.mask(before(text))
    return loaded


def _name_of(topic: str) -> str:
    name = _NOT_NAME.sub("-", topic).strip("-._")[:_LONGEST_NAME]
    return name or "pipeline"


# The sample of the source, and the registry.


def _look(
    call: Invocation, sections: Mapping[str, Any], draft: Loaded
) -> tuple[Sample, tuple[Finding, ...]]:
    from distributary.operations.discovery import discover, discover_files
    from distributary.source.source_entry import entry_of

    source, settings = draft.config.source, draft.config.registry
    if source.servers:
        call.out.step(f"topic {source.known_topics[0]} at {source.servers}")
    sample = entry_of(source).sample(source)
    if source.own_payload is not None:
        return sample, discover_files(sample)
    if settings is None:
        return sample, discover(sample, None)
    if settings.path is not None and not Path(settings.path).is_dir():
        raise ConfigError(
            "this folder has no registry",
            code=ErrorCode.NOT_FOUND,
            where=settings.path,
            next_step="name the folder of schemas, or the address of a registry",
        )
    return sample, discover(sample, open_registry(settings, attempts=_ATTEMPTS))


# Writing the pipeline file.


def _write(output: Path, text: str, *, force: bool) -> None:
    """Write the file as a whole, with the schema by which editors know its keys."""
    import json

    from distributary.config.file.show import json_schema
    from distributary.observe.log_format import private

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        beside = output.with_name(f".{output.name}.{os.getpid()}")
        try:
            with open(beside, "w", encoding="utf-8", opener=private) as made:
                made.write(text)
            # a link fails if another process has created the file meanwhile
            beside.replace(output) if force else os.link(beside, output)
        finally:
            beside.unlink(missing_ok=True)
        schema = output.parent / _SCHEMA
        if not schema.exists():
            schema.write_text(json.dumps(json_schema(), indent=2), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            "the pipeline file cannot be written",
            code=ErrorCode.CONFIG_UNREADABLE,
            where=str(output),
            evidence=error.strerror or type(error).__name__,
            next_step="choose another path with --output",
        ) from None


def _planned(call: Invocation, file: Path) -> Preview | None:
    """Return the preview of `plan` for the first records; a warning if it fails."""
    from distributary.config.load import load
    from distributary.engine.pipeline import Pipeline
    from distributary.operations.plan.trial_registry import preview

    limit, most = load(file, needs=()).config.source.batch_limit
    try:
        loaded = load(file, overrides={f"source.{limit}": most})
        return preview(Pipeline(loaded, log_file=call.log.path))
    except DistributaryError as error:
        call.out.warn(f"the file is written, but its effect cannot be previewed: {error.what}")
        return None


def _draw(
    paper: Paper,
    sample: Sample,
    findings: Sequence[Finding],
    output: Path,
    lake: str,
    plan: Preview | None,
) -> None:
    import shlex

    paper.line(styled("looked at ", "dim"), sample.looked_at)
    for finding in findings:
        paper.line(f"  {finding.what}")
    paper.line(styled("wrote ", "dim"), styled(str(output), "bold"))
    paper.line("")
    if plan is not None:
        draw_preview(paper, plan, most=_TABLES_SHOWN)
        paper.line("")
    paper.line("Type next:")
    paper.line(f"  {program()} run {shlex.quote(str(output))} --available-now")
    if plan is not None and (name := table_to_show(plan)):
        # names of tables contain only letters, digits and underscores
        asked = f"select * from {name} limit 10"  # noqa: S608
        paper.line(f'  {program()} query "{asked}" --lake {shlex.quote(lake)}')


def table_to_show(plan: Preview) -> str:
    """Return the most interesting table: current rows, else the table with the most records."""
    from distributary.model.table import Role

    for role in (Role.MERGED, Role.EACH, Role.UNIFIED, Role.BRONZE):
        tables = [table for table in plan.tables if table.role is role]
        if tables:
            return max(tables, key=lambda table: table.records).name
    return ""
