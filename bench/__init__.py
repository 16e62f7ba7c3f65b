"""Measurements of Muster, each beside something measured in the same run. `make bench` prints the table."""
