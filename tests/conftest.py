"""What all tests begin with, whoever starts them and from where."""

import os
import signal


def pytest_configure() -> None:
    """A worker of a parallel run is given a terminal's width and told to pass over Ctrl-C; programs that the tests
    start would inherit both."""
    os.environ.pop("COLUMNS", None)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
