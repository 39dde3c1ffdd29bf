"""The reason why something is not supported, as an entry of a seam states it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A sentence for what an implementation cannot do, and what to do instead."""

    what: str
    next_step: str = ""
