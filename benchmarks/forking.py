"""Work in a fork of this process: what it imports, compiles or breaks stays its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Longest that one process may take unless somebody says otherwise, in seconds.
LIMIT = 240.0


def forked(work: Callable[[], Any], caches: Path, limit: float = LIMIT) -> Any:
    """What ``work`` answers in a fork of this process whose caches are in a folder; None where it fails or takes too long."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read)
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ["TRITON_CACHE_DIR"] = str(caches / "triton")
            os.environ["TILESCOPE_TUNING"] = str(caches / "tuning.sqlite3")
            signal.setitimer(signal.ITIMER_REAL, limit)
            with os.fdopen(write, "w") as answer:
                answer.write(json.dumps(work()))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(write)
    try:
        with os.fdopen(read) as answer:
            said = answer.read()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.waitpid(pid, 0)
    return json.loads(said) if said else None
