"""Files on their way to an object store: many at once, because each of them mostly waits."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pyarrow as pa

from distributary.stores.known import file_system, without_secrets

_THREADS = 16
_MOST_WAITING = 64
"""Files held in memory until they are there."""


class UploadError(OSError):
    """A file that the store did not take; the words begin with its address."""


class Uploads:
    """Those of one task; nobody may be told of a file before `finish`."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()

    def put(self, address: str, content: pa.Buffer) -> None:
        """Begin to write a whole file. Raises what an earlier one has failed with."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="upload")
        self._waiting.append(self._pool.submit(_put, address, content))
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft().result()

    def finish(self) -> None:
        """Wait until all of them are there."""
        while self._waiting:
            self._waiting.popleft().result()

    def forget(self) -> None:
        """What a task that failed has left is not the next one's; none is on its way after this."""
        wait([one for one in self._waiting if not one.cancel()])
        self._waiting.clear()


def _put(address: str, content: pa.Buffer) -> None:
    try:
        system, path = file_system(address)
        with system.open_output_stream(path) as stream:
            stream.write(content)
    except OSError as error:
        words = without_secrets(str(error), address).partition("\n")[0]
        raise UploadError(f"{address}: {words}") from None
