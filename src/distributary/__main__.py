"""`python -m distributary`, the same as `distributary`."""

from distributary.cli.app import program
from distributary.supervise.process import hold_tether

if __name__ == "__main__":
    hold_tether()
    program()
