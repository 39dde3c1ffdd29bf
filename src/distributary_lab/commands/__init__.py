"""What the lab adds to the command line: `demo`, `dev` and `produce`."""
