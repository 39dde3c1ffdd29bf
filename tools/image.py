"""What an image of this very version is built of: `python -m tools.image FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from distributary.config.deploy import Kubernetes
from distributary.deploy.kubernetes import write_image

if __name__ == "__main__":
    write_image(Path(sys.argv[1]), Kubernetes(image="distributary").base_image)
