"""Jobs in processes that are forked from one that has imported what they need, which takes longer than most of them.

``serve`` is that one's, a program; ``Host`` starts it and gives it jobs.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Host:
    """A program that serves jobs, until this process ends."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        atexit.register(self._process.communicate)

    def ask(self, job: Any, environment: Mapping[str, str]) -> list[Any]:
        """What the job prints, a line of JSON each. ``environment`` is that of its process."""
        given, told = self._process.stdin, self._process.stdout
        assert given and told
        with tempfile.NamedTemporaryFile("r") as log:
            print(json.dumps({"job": job, "environment": dict(environment), "log": log.name}), file=given, flush=True)
            answers = []
            while not isinstance(answer := json.loads(told.readline()), dict) or "exit status" not in answer:
                answers.append(answer)
            assert answer["exit status"] == 0, log.read()[-4000:]
        return answers


def serve(work: Callable[[Any], None]) -> None:
    """Does each job that is read from standard input by ``work``, which prints, in a process of its own."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(_forked(work, **json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(json.dumps({"exit status": os.waitstatus_to_exitcode(status)}), flush=True)


def _forked(work: Callable[[Any], None], job: Any, environment: Mapping[str, str], log: str) -> int:
    with Path(log).open("w") as errors:
        os.dup2(errors.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    try:
        work(job)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0
