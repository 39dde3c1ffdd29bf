"""The command line: a module for each verb or group of verbs, with its options and output."""

from distributary.cli.command_line import main, program

__all__ = ["main", "program"]
