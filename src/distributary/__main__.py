"""`python -m distributary`, the same as `distributary`."""

import sys

from distributary.cli.command_line import program, return_freed_memory

if __name__ == "__main__":
    return_freed_memory(sys.argv[1:])
    from distributary.supervise.process import hold_tether

    hold_tether()
    program()
