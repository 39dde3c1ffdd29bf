"""`dev`: a broker and a registry, started, stopped and looked at."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from distributary.cli.output import Paper, listed, since, styled
from distributary.cli.verb import Invocation
from distributary.lab.services.services import Condition, Services, State, contents, usual_folder

_COLOURS = {State.UP: "green", State.SILENT: "yellow", State.DOWN: "bold red"}


def start_services(
    call: Invocation, *, folder: Path | None, kafka_port: int | None, registry_port: int | None
) -> None:
    """Start what does not run; both addresses."""
    services = Services.at_usual_ports(
        folder or usual_folder(), kafka_port=kafka_port, registry_port=registry_port
    )
    began = time.monotonic()
    started = services.start(call.out.note)
    if started:
        call.out.note(f"{' and '.join(started)} started in {time.monotonic() - began:.1f} s")
    else:
        call.out.note("already running")
    data = {"kafka": services.kafka, "registry": services.registry}
    call.out.show(data, lambda paper: _draw_addresses(paper, data))


def _draw_addresses(paper: Paper, addresses: Mapping[str, str]) -> None:
    for name, address in addresses.items():
        paper.line(styled(f"{name:10}", "bold"), address)


def stop_services(call: Invocation, *, folder: Path | None, wipe: bool, dry_run: bool) -> None:
    """Stop what runs, and remove what was made if that is wanted."""
    services = Services(folder or usual_folder())
    removed = contents(services.folder) if wipe else []
    if dry_run:
        conditions = services.status().items()
        stopped = tuple(name for name, each in conditions if each.state is not State.DOWN)
    else:
        stopped = services.wipe() if wipe else services.stop()
    data = {"stopped": stopped, "removed": removed, "dry_run": dry_run}
    would = "would be " if dry_run else ""
    call.out.show(data, lambda paper: _draw_end(paper, stopped, removed, would))


def _draw_end(paper: Paper, stopped: tuple[str, ...], removed: list[Path], would: str) -> None:
    paper.line(f"{would}stopped: {listed(stopped)}" if stopped else "nothing was running")
    for path in removed:
        paper.line(f"{would}removed: {path}")


def show_services(call: Invocation, *, folder: Path | None) -> int:
    """Both, as they are; 1 unless both answer."""
    services = Services(folder or usual_folder())
    conditions = services.status()
    healthy = all(each.state is State.UP for each in conditions.values())
    data = {"ok": healthy, "folder": services.folder, **conditions}
    call.out.show(data, lambda paper: _draw(paper, conditions))
    return 0 if healthy else 1


def _draw(paper: Paper, conditions: Mapping[str, Condition]) -> None:
    paper.table(
        ("SERVICE", "STATE", "ADDRESS", "PID", "SINCE", "LOG"),
        (
            (
                name,
                styled(each.state, _COLOURS[each.state]),
                each.address or "-",
                str(each.pid or "-"),
                since(each.since),
                str(each.log),
            )
            for name, each in conditions.items()
        ),
        right=("PID",),
        indent=0,
    )
