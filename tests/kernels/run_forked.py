"""Run as a program: runs scripts, each in a process that is forked for it (``tests.forking``): its ``main``, or the checks named."""

import contextlib
import importlib
import sys

import checks

from tests.forking import serve


def work(job):
    script, *names = job
    sys.argv = [script, *names]
    module = importlib.import_module(script.removesuffix(".py"))
    with getattr(module, "AROUND", contextlib.nullcontext)():
        if hasattr(module, "main"):
            module.main()
        else:
            checks.main(vars(module))


if __name__ == "__main__":
    serve(work)
