"""What the properties of an object are called in the lake."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MAX_CHARACTERS = 128
_NOT_WORD = re.compile(r"\W")


def lake_names(properties: Iterable[str], *, top: bool) -> dict[str, str]:
    """A name for each property, made of letters, digits and underscores.

    A lake's names do not differ by case, and names with a leading underscore belong to the
    pipeline's own columns at the top. Where several properties would get one name, the plainest
    has it, whatever the order; the others end in a digest of their own name, so that one more of
    them does not rename the rest.
    """
    wanted = {name: _plain(name, top=top) for name in properties}
    owners: dict[str, str] = {}
    for name, new in wanted.items():
        folded = new.casefold()
        owners[folded] = min(owners.get(folded, name), name, key=lambda n: _effort(n, wanted[n]))
    given: dict[str, str] = {}
    taken = set(owners)
    for name, new in wanted.items():
        given[name] = new
        if owners[new.casefold()] != name:
            given[name] = f"{new}_{_digest(name)}"
            while given[name].casefold() in taken:
                given[name] += "_"
            taken.add(given[name].casefold())
    return given


def _effort(name: str, new: str) -> tuple[bool, bool, str]:
    """How much had to be done to a name; ties are broken by the name itself."""
    return new != name, name != name.casefold(), name


def _plain(name: str, *, top: bool) -> str:
    plain = _NOT_WORD.sub("_", name)
    if not plain.strip("_") or (top and plain.startswith("_")):
        plain = f"field{plain if plain.startswith('_') else f'_{plain}'}"
    if len(plain) > MAX_CHARACTERS:
        plain = f"{plain[: MAX_CHARACTERS - 9]}_{_digest(name)}"
    return plain


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
