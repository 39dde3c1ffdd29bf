"""`dev`: a broker and a registry on this machine, started, stopped and looked at."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from distributary.cli.command.output import Paper, since, styled
from distributary.cli.command.verb import START, DryRun, Invocation, group, option, verb
from distributary.observe.log_format import listed

app = group(
    "dev", "A Kafka broker and a schema registry on this machine: start, stop, status.", panel=START
)

Folder = Annotated[
    Path | None,
    option("--folder", "Folder of data and logs; by default a folder of this user.", metavar="DIR"),
]


@verb(app, "dev up", "dev up --kafka-port 19092 --registry-port 18081 --folder kafka-2")
def up(
    call: Invocation,
    kafka_port: Annotated[
        int | None, option("--kafka-port", "Port of the broker; 9092 by default.", min=1, max=65535)
    ] = None,
    registry_port: Annotated[
        int | None,
        option("--registry-port", "Port of the registry; 8081 by default.", min=1, max=65535),
    ] = None,
    folder: Folder = None,
) -> None:
    """Start a broker and a registry on loopback, and wait until both answer.

    They run in the background until `dev down`. Services that already run are not restarted. The
    first call downloads about 150 MB into the user's cache.
    """
    from distributary_lab.services.services import USUAL_PORTS, Services, usual_folder

    services = Services(
        folder or usual_folder(),
        kafka_port=kafka_port,
        registry_port=registry_port,
        usual=USUAL_PORTS,
    )
    began = time.monotonic()
    started = services.start(call.out.note)
    if started:
        call.out.note(f"{' and '.join(started)} started in {time.monotonic() - began:.1f} s")
    else:
        call.out.note("already running")
    data = {"kafka": services.kafka, "registry": services.registry}

    def draw(paper: Paper) -> None:
        for name, address in data.items():
            paper.line(styled(f"{name:10}", "bold"), address)

    call.out.show(data, draw)


@verb(app, "dev down", "dev down --wipe --dry-run")
def down(
    call: Invocation,
    wipe: Annotated[bool, option("--wipe", "Also remove topics, schemas and logs.")] = False,
    folder: Folder = None,
    dry_run: DryRun = False,
) -> None:
    """Stop the broker and the registry; keep topics and schemas."""
    from distributary_lab.services.services import Services, ServiceState, contents, usual_folder

    services = Services(folder or usual_folder())
    removed = contents(services.folder) if wipe else []
    if dry_run:
        conditions = services.status().items()
        stopped = tuple(name for name, each in conditions if each.state is not ServiceState.DOWN)
    else:
        stopped = services.wipe() if wipe else services.stop()
    would = "would be " if dry_run else ""

    def draw(paper: Paper) -> None:
        paper.line(f"{would}stopped: {listed(stopped)}" if stopped else "nothing was running")
        for path in removed:
            paper.line(f"{would}removed: {path}")

    call.out.show({"stopped": stopped, "removed": removed, "dry_run": dry_run}, draw)


@verb(app, "dev status")
def status(call: Invocation, folder: Folder = None) -> int:
    """Show address, start and state of broker and registry; exit code 1 unless both answer."""
    from distributary_lab.services.services import Services, ServiceState, usual_folder

    services = Services(folder or usual_folder())
    conditions = services.status()
    healthy = all(each.state is ServiceState.UP for each in conditions.values())
    colours = {
        ServiceState.UP: "green",
        ServiceState.SILENT: "yellow",
        ServiceState.DOWN: "bold red",
    }

    def draw(paper: Paper) -> None:
        paper.table(
            ("SERVICE", "STATE", "ADDRESS", "PID>", "SINCE", "LOG"),
            (
                (
                    name,
                    styled(each.state, colours[each.state]),
                    each.address or "-",
                    str(each.pid or "-"),
                    since(each.since),
                    str(each.log),
                )
                for name, each in conditions.items()
            ),
            indent=0,
        )

    call.out.show({"ok": healthy, "folder": services.folder, **conditions}, draw)
    return 0 if healthy else 1
