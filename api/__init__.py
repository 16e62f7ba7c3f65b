"""What people and programs talk to: HTTP, the command line, and the all-in-one `muster up`."""
