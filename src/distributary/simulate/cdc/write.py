"""Files into a folder: each appears whole, under a name that nobody has seen before."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from distributary import durable
from distributary.errors import ConfigError
from distributary.simulate.cdc.files import FileRound, FileStream
from distributary.simulate.cdc.sent import CdcSent

# a path has lost one of its slashes
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,30}:/")


def write_files(
    stream: FileStream,
    root: Path,
    *,
    interval: float = 0.0,
    on_round: Callable[[FileRound], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> CdcSent:
    """Write all rounds and say what was sent.

    Args:
        stream: what to write.
        root: the stream's folder; made if it is not there.
        interval: seconds between two rounds.
        on_round: called after each round, for progress.
        sleep: waits between rounds.
    """
    address = _ADDRESS.match(str(root))
    if address or interval < 0:
        raise ConfigError(
            "simulated files need a local folder, and no time below 0 between two rounds",
            where="path, interval",
            # an address may hold a password: only its scheme is shown
            evidence=f"{address[0] if address else 'a folder'}, {interval}",
            next_step="give the path of a folder on this machine",
        )
    for round in stream.rounds():
        if round.number and interval:
            sleep(interval)
        write_round(round, root)
        if on_round is not None:
            on_round(round)
    return stream.sent()


def write_round(round: FileRound, root: Path) -> None:
    """Write the files of one round."""
    for file in round.files:
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.replace(path, file.data, durable=False)
