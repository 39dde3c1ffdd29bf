"""What an update took for granted, so that it can be told afterwards whether it still holds.

Spark's client does not say why a task failed. So the definitions of a project write down the
columns they fixed, into a file that the supervised update names; when the update has failed, the
registry is asked again, and if the columns would be others now, that is why.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributary.pipelines.known import known, settings

VARIABLE = "DISTRIBUTARY_PIPELINES_ASSUMED"
Shape = Mapping[str, list[str]]


def assume(file: str | os.PathLike[str], shape: Shape) -> None:
    """Write down the columns of a pipeline file's types, where somebody wants to know."""
    book = os.environ.get(VARIABLE)
    if book:
        line = json.dumps({"file": str(Path(file).absolute()), "shape": dict(shape)})
        with Path(book).open("a", encoding="utf-8") as written:
            written.write(f"{line}\n")


def grown(book: Path) -> list[str]:
    """What has changed since it was written down, a line for each type; none if nothing has."""
    assumed = _read(book)
    news: dict[str, None] = {}
    for file in dict.fromkeys(each["file"] for each in assumed):
        now = known(settings(file)).shape()
        for each in assumed:
            if each["file"] == file:
                news |= dict.fromkeys(_news(each["shape"], now))
    return list(news)


def _news(before: Shape, now: Shape) -> list[str]:
    lines = []
    for name, columns in now.items():
        if name not in before:
            lines.append(f"+ type {name}")
        elif columns != before[name]:
            more = [column for column in columns if column not in before[name]]
            lines.append(f"{name}: + {', '.join(more) or 'other columns'}")
    return lines


def _read(book: Path) -> list[dict[str, Any]]:
    try:
        lines = book.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]
