"""The command line: ``bowstring`` of an installed package, and ``python -m bowstring``."""

from __future__ import annotations

import signal
import sys

from bowstring import _native


def main() -> None:
    """Runs the command line on ``sys.argv`` and ends the process with its exit code."""
    # Python's own handler only records Ctrl-C until Python code runs again, which it does not here.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.command_line([sys.executable, "-m", "bowstring"], sys.argv[1:]))


if __name__ == "__main__":
    main()
