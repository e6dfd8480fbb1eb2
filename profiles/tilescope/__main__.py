"""``python -m tilescope`` is the command ``tilescope``, which begins here: Ctrl-C ends it in one line also while it is imported."""

import os
import sys

INTERRUPTED = 130  # as shells have it


def main() -> int:
    """Runs the command and returns its exit status: 130 when interrupted."""
    try:
        import signal  # noqa: PLC0415 - these imports take a fifth of a second

        if heard := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # An exception would be lost in a callback of an import.
            signal.signal(signal.SIGINT, lambda number, frame: os._exit(_interrupted()))
        from tilescope.cli import main as command  # noqa: PLC0415

        return command(ready=lambda: heard and signal.signal(signal.SIGINT, signal.default_int_handler))
    except KeyboardInterrupt:
        return _interrupted()


def _interrupted() -> int:
    sys.stderr.write("tilescope: interrupted\n")
    sys.stderr.flush()
    return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
