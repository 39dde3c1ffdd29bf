"""The nearest known word to a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher


def similarity(word: str, candidate: str) -> float:
    """1 for the same word whatever its case and separators, 0 for nothing in common."""
    return SequenceMatcher(None, _plain(word), _plain(candidate), autojunk=False).ratio()


def nearest(word: str, candidates: Iterable[str], *, at_least: float = 0.6) -> str:
    """The candidate most like the word; empty when none is near."""
    # a typo seldom doubles a word: this keeps a hostile key from costing anything
    scored = [(similarity(word, c), c) for c in candidates if len(word) <= 2 * len(c) + 4]
    best = max(scored, default=(0.0, ""), key=lambda pair: pair[0])
    return best[1] if best[0] >= at_least else ""


def _plain(word: str) -> str:
    return word.casefold().replace("-", "_")
