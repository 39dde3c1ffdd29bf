"""A service of this machine: one unit, and a timer where runs come by the clock."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import platformdirs

from distributary.config.deploy import Systemd
from distributary.deploy.files import Artifact, FileTarget
from distributary.deploy.pipeline_file import Installable

NAME = "systemd"
SYSTEM_UNITS = Path("/etc/systemd/system")
STOP_SECONDS = 300
"""How long a batch that is under way may take to end."""

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
# a JVM writes the code that it runs: MemoryDenyWriteExecute would end it
_EVERYWHERE = (
    "NoNewPrivileges=yes",
    "RestrictSUIDSGID=yes",
    "RestrictRealtime=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "UMask=0077",
)
# these need rights that a user's own manager does not have
_SYSTEM_ONLY = (
    "ProtectSystem=full",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "PrivateDevices=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "CapabilityBoundingSet=",
)


def systemd_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """The files of `install --target systemd`."""
    settings = pipeline.deploy.systemd or Systemd()
    folder = (out or unit_folder(user=settings.user)).absolute()
    name = unit_name(pipeline.name, settings)
    artifacts = [Artifact(folder / f"{name}.service", service_unit(pipeline, settings))]
    if settings.schedule is not None:
        artifacts.append(Artifact(folder / f"{name}.timer", timer_unit(pipeline.name, settings)))
    control = "systemctl --user" if settings.user else "systemctl"
    started = f"{name}.timer" if settings.schedule is not None else f"{name}.service"
    secrets = settings.environment_file
    return FileTarget(
        NAME,
        pipeline.name,
        folder,
        tuple(artifacts),
        ("*.service", "*.timer"),
        next_steps=(
            *([f"chmod 0600 {secrets}"] if secrets else []),
            f"{control} daemon-reload",
            f"{control} enable --now {started}",
            *(["loginctl enable-linger"] if settings.user else []),
        ),
        last_steps=(f"{control} disable --now {started}", f"{control} daemon-reload"),
    )


def unit_folder(*, user: bool) -> Path:
    """Where systemd looks for units that people write."""
    return platformdirs.user_config_path("systemd") / "user" if user else SYSTEM_UNITS


def unit_name(pipeline: str, settings: Systemd) -> str:
    """The unit's name without what it is."""
    return settings.name or f"distributary-{pipeline}"


def service_unit(pipeline: Installable, settings: Systemd) -> str:
    """The service, which stays, or which a timer starts."""
    timed = settings.schedule is not None
    wanted = "default.target" if settings.user else "multi-user.target"
    unit = [
        f"Description=Distributary pipeline {pipeline.name}",
        "Wants=network-online.target",
        "After=network-online.target",
        # who keeps failing is retried for ever, at a pace
        "StartLimitIntervalSec=0",
    ]
    folder, secrets = settings.working_directory or str(Path.cwd()), settings.environment_file
    service = [
        f"Type={'oneshot' if timed else 'exec'}",
        f"ExecStart={' '.join(map(_word, _command(pipeline, settings)))}",
        f"WorkingDirectory={_specifiers(folder)}",
        *([f"User={settings.run_as}"] if settings.run_as else []),
        # output goes to the journal line by line, not when a buffer is full
        "Environment=PYTHONUNBUFFERED=1",
        *([f"EnvironmentFile={_specifiers(secrets)}"] if secrets else []),
        "Restart=on-failure",
        "RestartSec=15",
        # a mistake in the file stays one however often it is tried
        "RestartPreventExitStatus=2",
        "SuccessExitStatus=143",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_SECONDS}",
        *([f"MemoryMax={settings.memory_max}"] if settings.memory_max else []),
        *_EVERYWHERE,
        *(_SYSTEM_ONLY if not settings.user else ()),
    ]
    install = [] if timed else ["", "[Install]", f"WantedBy={wanted}"]
    return "\n".join(["[Unit]", *unit, "", "[Service]", *service, *install]) + "\n"


def timer_unit(pipeline: str, settings: Systemd) -> str:
    """The clock of a service that ends by itself; a run that was missed is made up for."""
    return f"""\
[Unit]
Description=Runs of Distributary pipeline {pipeline}

[Timer]
OnCalendar={settings.schedule}
Persistent=true
RandomizedDelaySec=5

[Install]
WantedBy=timers.target
"""


def _command(pipeline: Installable, settings: Systemd) -> list[str]:
    # -P: the working folder is no place to import from
    program = [sys.executable, "-P", "-m", "distributary"]
    if settings.schedule is not None:
        return [*program, "run", str(pipeline.path), "--available-now"]
    listen = ["--listen", settings.listen] if settings.listen else []
    return [*program, "up", str(pipeline.path), "--log-format", "json", *listen]


def _word(text: str) -> str:
    """One argument, as systemd reads it back."""
    escaped = _specifiers(text).replace("$", "$$")
    if _PLAIN.fullmatch(escaped):
        return escaped
    quoted = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")
