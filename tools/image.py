"""What an image of this very version is built of: `python -m tools.image FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from distributary.config.deploy import Kubernetes
from distributary.deploy.file_targets import template
from distributary.deploy.kubernetes_files import dockerfile
from distributary.deploy.package import WHEEL, write_wheel


def write_image(folder: Path) -> None:
    """Write the Dockerfile, its entry point, and the wheel."""
    base = Kubernetes(image="distributary").base_image
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile(base), "utf-8")
    (folder / "entrypoint.sh").write_text(template("entrypoint.sh"), "utf-8")
    write_wheel(folder / WHEEL)


if __name__ == "__main__":
    write_image(Path(sys.argv[1]))
