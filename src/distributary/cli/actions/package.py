"""`package`: the Python packages of this environment as one file."""

from __future__ import annotations

from pathlib import Path

from distributary.cli.output import Paper
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, size
from distributary.deploy.package import contents, pack, packages
from distributary.errors import ConfigError

# of an archive with another name, Spark unpacks no rights: its Python could not be started
_ENDINGS = (".tar.gz", ".tgz")


def package_environment(call: Invocation, out: Path, *, dry_run: bool) -> int:
    """Write the archive; with `dry_run` only say what would be in it."""
    if not out.name.endswith(_ENDINGS):
        raise ConfigError(
            "Spark unpacks archives by the end of their names",
            where=str(out),
            next_step="name it with .tar.gz at its end",
        )
    if dry_run:
        found = contents()
        names, files, held = packages(), len(found), sum(p.stat().st_size for p in found.values())
    else:
        call.out.note("packing; this takes a minute")
        done = pack(out)
        names, files, held = done.packages, done.files, done.bytes
    data = {
        "path": str(out),
        "dry_run": dry_run,
        "packages": list(names),
        "files": files,
        "bytes": held,
    }
    what = f"{counted(len(names), 'package')}, {counted(files, 'file')}, {size(held)}"
    call.out.show(data, lambda paper: _draw(paper, out, what, dry_run=dry_run))
    return 0


def _draw(paper: Paper, out: Path, what: str, *, dry_run: bool) -> None:
    paper.line(f"would pack {what} before compression" if dry_run else f"{out}: {what}")
