"""`explain`: what an error code or a word means."""

from __future__ import annotations

import re
from typing import Annotated

from distributary.cli.output import Paper, styled
from distributary.cli.verb import LOOK, Invocation, argument, single, verb
from distributary.errors import DistributaryError, ErrorCode
from distributary.observe.explanations import glossary, meanings

app = single(LOOK)

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARKUP = re.compile(r"[`*]|<[^>]+>|\\(?=\|)")


def _known(incomplete: str) -> list[str]:
    """Codes and words that begin like this, for Tab."""
    known = [*meanings(), *glossary()]
    return [each for each in known if each.casefold().startswith(incomplete.casefold())]


@verb(app, "explain SOURCE_UNAVAILABLE", "explain parked", "explain")
def explain(
    call: Invocation,
    what: Annotated[
        str | None,
        argument(
            "An error code or a word of the glossary; a list of both when left out.",
            metavar="CODE|WORD",
            autocompletion=_known,
        ),
    ] = None,
) -> None:
    """What an error code or a word means, and what to do about it."""
    if what is None:
        data = {"codes": sorted(meanings()), "words": list(glossary())}
        call.out.show(data, _draw_all)
        return
    word, code = what.strip().casefold(), what.strip().upper()
    if code in meanings():
        meaning, next_step = map(_plain, meanings()[code])
        call.out.show(
            {"code": code, "meaning": meaning, "next_step": next_step},
            lambda paper: _draw(paper, code, meaning, next_step),
        )
    elif word in glossary():
        text = _plain(glossary()[word])
        call.out.show({"word": word, "meaning": text}, lambda paper: _draw(paper, word, text))
    else:
        # settings are heavy to import, and help does without them
        from distributary.config.base import nearest

        near = nearest(code, meanings()) or nearest(word, glossary())
        raise DistributaryError(
            f"there is no code and no word {what[:100]!r}",
            code=ErrorCode.NOT_FOUND,
            where="command line",
            next_step=f"distributary explain {near}".strip(),
        )


def _plain(text: str) -> str:
    """A cell of a page without its markup."""
    return _MARKUP.sub("", _LINK.sub(r"\1", text))


def _draw(paper: Paper, name: str, meaning: str, next_step: str = "") -> None:
    paper.line(styled(name, "bold"))
    paper.line(f"  {meaning}")
    if next_step:
        paper.line(styled("  next  ", "dim"), next_step)


def _draw_all(paper: Paper) -> None:
    paper.line(styled("Codes", "bold"))
    for code in sorted(meanings()):
        paper.line(f"  {code}")
    paper.line(styled("Words", "bold"))
    paper.line(f"  {', '.join(glossary())}")
