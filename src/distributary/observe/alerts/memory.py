"""What alerts must know after a restart: one small file, there whole or not at all."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributary import durable

_log = logging.getLogger(__name__)

NAME = "alerts.json"
_FORMAT = 1
_LARGEST = 64 * 1024 * 1024


class Memory:
    """The file of one pipeline. A folder that cannot be used costs the memory, never the run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._written = b""
        self._complained = False

    def read(self) -> Mapping[str, Any]:
        """What was written last; empty when there is nothing that can be used."""
        try:
            if self._path.stat().st_size > _LARGEST:
                raise ValueError("too large")
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, RecursionError, ValueError) as error:
            self._complain("cannot be read and is begun anew", error)
            return {}
        usable = isinstance(content, dict) and content.get("format") == _FORMAT
        return content if usable else {}

    def write(self, content: Mapping[str, Any]) -> None:
        """Remember; nothing is done where nothing has changed."""
        data = json.dumps({"format": _FORMAT, **content}).encode()
        if data == self._written:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            durable.replace(self._path, data)
        except OSError as error:
            self._complain("cannot be written: a restart may repeat alerts", error)
            return
        self._written = data

    def _complain(self, what: str, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("%s %s (%s)", self._path, what, type(error).__name__)
