"""The script through which `spark-submit` and Databricks start a pipeline."""

from __future__ import annotations

LAUNCHER = '''\
"""Runs the distributary command whose words follow, for schedulers that start a Python file."""

import sys

from distributary.cli import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    # a scheduler takes any SystemExit for a failure, also that of 0
    if code:
        raise SystemExit(code)
'''
