"""The log on standard error that `--log-format` asks for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from distributary.cli.output import NORMAL, STEPS, Output
from distributary.observe.journal import Journal, keeping
from distributary.observe.log_format import LogFormat


@contextmanager
def journal_for(out: Output, form: LogFormat | None) -> Iterator[Journal | None]:
    """Everything that is not data becomes lines of a log; as before when no format is given.

    The output keeps it when this is over, because an error is told last of all.
    """
    if form is None:
        yield None
        return
    journal = Journal(sys.stderr, form, steps=out.verbosity >= STEPS, quiet=out.verbosity < NORMAL)
    # asked each time: secrets are known only when the file was read
    journal.mask = lambda text: out.mask(text)
    out.journal = journal
    with keeping(journal):
        yield journal
