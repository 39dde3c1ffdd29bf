"""A process that ends while Arrow's threads still use Python keeps its exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Arrow reads ahead in a thread of its own, from a file that Python serves slowly
READING = """
import atexit, io, sys, time
import pyarrow as pa
import pyarrow.csv as csv

class Slow(io.RawIOBase):
    reads = 0

    def readable(self):
        return True

    def read(self, size=-1):
        self.reads += 1
        time.sleep(0.5 if self.reads > 2 else 0)
        return b"1,2\\n" * 1000

def read():
    global reader
    file = pa.PythonFile(Slow(), mode="r")
    reader = csv.open_csv(file, csv.ReadOptions(block_size=4000, column_names=["a", "b"]))
    reader.read_next_batch()

atexit.register(print, "told of the end")
"""
DIRECT = "from distributary.threads import end_process\nread()\nend_process(3)"
COMMAND = """
from distributary.cli import command_line

command_line.main = lambda: read() or 3
command_line.program()
"""
SIGNAL = """
from distributary.cli import command_line

def main():
    read()
    sys.exit(143)

command_line.main = main
command_line.program()
"""


@pytest.mark.parametrize(("end", "code"), [(DIRECT, 3), (COMMAND, 3), (SIGNAL, 143)])
def test_the_exit_code_is_that_of_the_program(end: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READING + end], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "told of the end\n"), done.stderr
