"""Pure scheduling: no clock, no chance, no I/O. Same log, same bytes of state, same decisions."""
