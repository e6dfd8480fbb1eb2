"""Run as a program: runs scripts of checks, each with its names in a process that is forked for it (``tests.forking``)."""

import runpy
import sys
from pathlib import Path

import checks  # noqa: F401 - what takes longest, and all scripts need

from tests.forking import serve


def work(job):
    script, *names = job
    path = str(Path(__file__).with_name(script))
    sys.argv = [path, *names]
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    serve(work)
