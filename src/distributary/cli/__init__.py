"""The command line: declared in `commands/`, done in `actions/`, drawn by `output.py`."""

from distributary.cli.app import main

__all__ = ["main"]
