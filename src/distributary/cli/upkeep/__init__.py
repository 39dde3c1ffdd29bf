"""Commands that keep a lake well: verify, mend, send dead letters again, compact, back up."""
