"""What ends with the process that started it, however that ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from distributary.dev.guard import Guard


class Guarded(ABC):
    """Services of one folder, for `with`: started at its beginning, stopped at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().resolve()
        self._guard: Guard | None = None

    @abstractmethod
    def start(self) -> object:
        """Start what does not run, and wait until it answers."""

    @abstractmethod
    def stop(self) -> object:
        """Stop what runs, and wait until it is gone."""

    def _clear(self) -> None:
        """Remove what a start that failed has left behind."""
        return

    def __enter__(self) -> Self:
        self._guard = Guard(self.folder)
        try:
            self.start()
        except BaseException:
            self._clear()
            self._guard.dismiss()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._guard is not None:
            self._guard.dismiss()
