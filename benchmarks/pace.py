"""Sends a file of messages at a steady rate: `python -m benchmarks.pace SERVERS TOPIC FILE RATE`.

With SECONDS behind it the file is sent again and again, for so long.

A process of its own: nothing that the engine does can slow it down, except for the cores they
share. Each message carries the time at which it is sent. JSON out: when it began, how long it took,
and its own CPU seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time

import pyarrow as pa

from benchmarks.topic import Sender

_TICK_SECONDS = 0.005


def main() -> None:
    servers, topic, file, rate = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    # read where it lies, tick by tick: minutes of messages would be gigabytes of Python's objects
    messages = pa.ipc.open_file(pa.memory_map(file)).read_all()
    wanted = int(rate * float(sys.argv[5])) if len(sys.argv) > 5 else len(messages)
    sender = Sender(servers, topic)
    parent = os.getppid()
    began, sent = time.time(), 0
    while sent < wanted:
        due = min(wanted, int((time.time() - began) * rate))
        while sent < due:
            first = sent % len(messages)
            part = messages.slice(first, min(due - sent, len(messages) - first)).to_pylist()
            for message in part:
                sender.send(message["key"], message["value"], timestamp=int(time.time() * 1000))
            sent += len(part)
        sender.poll()
        if os.getppid() != parent:
            # without the one who asked for it, nobody wants it any more, nor is there a broker
            sys.exit("the case has ended")
        time.sleep(_TICK_SECONDS)
    took = time.time() - began
    sender.close()
    spent = time.process_time()
    print(json.dumps({"began": began, "seconds": took, "sent": sent, "cpu_seconds": spent}))


if __name__ == "__main__":
    main()
