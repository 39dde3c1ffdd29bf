"""A service that has a folder of its own: started, killed and stopped by itself."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from distributary.dev.folder import alone
from distributary.dev.guarded import Guarded
from distributary.dev.ports import free_port, require_free
from distributary.dev.process import Running, end, running
from distributary.dev.services import wait_until_up
from distributary.run.ivy import Progress

_EVIDENCE_LINES = 12


class Single(Guarded):
    """Used with `with`, it ends with this process, however that ends; its data goes with it."""

    name = ""
    """How people call it."""
    title = ""
    """What it is, for a sentence."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        super().__init__(folder)
        self.port = port or free_port(but=set())

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "logs" / f"{self.name}.log"

    def evidence(self) -> str:
        """The last lines of what it said."""
        text = self.log.read_text("utf-8", "replace") if self.log.is_file() else ""
        return "\n".join(text.splitlines()[-_EVIDENCE_LINES:])

    @abstractmethod
    def answers(self) -> bool:
        """Whether it speaks its protocol."""

    @abstractmethod
    def _launch(self, say: Progress) -> Running:
        """Start it; the folder is there, and the port is free."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove its data; it does not run."""

    def start(self, progress: Progress | None = None) -> bool:
        """Start it and wait until it answers; False if it runs already.

        Raises SetupError when something is not installed, the port is taken or it does not start.
        """
        say = progress or (lambda _: None)
        with alone(self.folder, say):
            live = running(self.folder).get(self.name)
            if live is None:
                require_free(self.port, service=self.title)
                say(f"starting {self.title} at port {self.port}")
            process = live or self._launch(say)
            try:
                wait_until_up(self, process)
            except BaseException:
                if live is None:
                    end([process], gently=False)
                raise
        return live is None

    def stop(self) -> bool:
        """Stop it, wait until it is gone and remove its data; False if it did not run."""
        live = list(running(self.folder).values())
        end(live)
        self._discard()
        return bool(live)

    def kill(self) -> None:
        """End it as a crash would; its data stays."""
        end(running(self.folder).values(), gently=False)

    def restart(self) -> None:
        """It again, at the same port with the same data; killed first if it runs."""
        self.kill()
        self.start()

    def _clear(self) -> None:
        self._discard()
