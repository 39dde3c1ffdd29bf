"""The command line: a file for each verb, or group of verbs, with what it takes, does and draws."""

from distributary.cli.app import main, program

__all__ = ["main", "program"]
