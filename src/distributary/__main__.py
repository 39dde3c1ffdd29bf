"""`python -m distributary`, the same as `distributary`."""

import sys

from distributary.cli.app import main
from distributary.supervise.process import hold_tether

if __name__ == "__main__":
    hold_tether()
    sys.exit(main())
