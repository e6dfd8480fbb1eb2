"""The worker: the only process that launches kernels. Run as ``python -m tilescope.jobs.worker JOB.json``.

The job names an ``action`` (``capture``, ``describe`` or ``ceilings``) and what it needs; the answers are JSON lines,
one an event, written to the file the job names under ``events``, or else to standard output. Kernels, compilers and
wrappers may print what they like: file descriptor 1 is standard error here.
"""

from __future__ import annotations

import dataclasses
import gc
import getpass
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tilescope import collectors
from tilescope.execution.parentage import WATCH, die_with
from tilescope.jobs import machine_limits
from tilescope.jobs.worker import ready
from tilescope.table.case import Case
from tilescope.table.sources import KNOWN

#: Exit status of a worker whose device no longer answers: the supervisor starts another for the cases left.
BROKEN_DEVICE = 3

#: Characters of a message, and of its traceback, that are told: some libraries print a whole tensor.
_SAID, _DETAILS = 2000, 64 << 10

Emit = Callable[[Mapping[str, Any]], None]


def main(arguments: list[str]) -> int:
    """Does the job in the file that ``arguments`` names, which is still to come where they say so. Returns the exit status."""
    file, *standing = arguments
    if standing:
        _die_with(int(standing[1]))
        ready.stand_by(Path(file))
    job = json.loads(Path(file).read_text(encoding="utf-8"))
    _die_with(job.get("supervisor"))
    _work_in(job.get("temporary"))
    emit = _protocol(job.get("events"))
    try:
        status = {"capture": _capture, "describe": _describe, "ceilings": _ceilings}[job["action"]](job, emit)
    except Exception as error:
        emit({"event": "error", "case": "", **_said(error, starting=True)})
        return 1
    if status == 0:
        emit({"event": "done"})
    return status


def line(error: BaseException) -> str:
    """An exception in one line: the first line of its message, after its type unless it is a ValueError."""
    try:
        said = str(error)[:_SAID]
    except Exception:  # an exception may be of a kernel's own kind, and its text no better than the rest
        said = ""
    text = next((part.strip() for part in said.splitlines() if part.strip()), "")
    plain = isinstance(error, ValueError) and text
    return text if plain else f"{type(error).__name__}: {text}" if text else type(error).__name__


def _said(error: BaseException, starting: bool = False) -> dict[str, str]:
    """The fields of an event that reports an error; ``environment`` names what the machine lacked, if that caused it."""
    lacking = machine_limits.lacking(error, starting)
    said = {"message": line(error), "detail": "".join(traceback.format_exception(error))[-_DETAILS:]}
    return {**said, "environment": lacking} if lacking else said


def _capture(job: Mapping[str, Any], emit: Emit) -> int:
    name, folder, settings = job["collector"], Path(job["folder"]), job.get("settings", {})
    cases = [Case(**case) for case in job["cases"]]
    emit({"event": "start", "of": len(cases)})
    module = collectors.load(name)
    doing = KNOWN[name].doing if name in KNOWN else "running"
    from tilescope.execution import execute  # noqa: PLC0415 - torch comes with it: "start" explains the wait

    specs: dict[str, Any] = {}

    def load(kernel: str) -> Any:
        return specs[kernel] if kernel in specs else specs.setdefault(kernel, execute.load_spec(kernel))

    def begin(case: Case, doing: str = doing) -> None:
        emit(
            {
                "event": "case",
                "index": cases.index(case),
                "of": len(cases),
                "case": case.id,
                "collector": name,
                "doing": doing,
            }
        )

    def one_by_one() -> Iterator[tuple[Case, BaseException | None]]:
        for case in cases:
            begin(case)
            try:
                module.capture(case, load(case.kernel), folder / f"{case.slug}{module.SUFFIX}", settings)
                _synchronise()
            except (Exception, SystemExit) as error:
                yield case, error
            else:
                yield case, None

    together = getattr(module, "capture_all", None)
    for case, error in together(cases, load, folder, settings, begin) if together else one_by_one():
        about = {"case": case.id, "collector": name}
        if error is None:
            emit({"event": "result", **about, "artefact": f"{case.slug}{module.SUFFIX}"})
        elif isinstance(error, execute.NotApplicable):
            emit({"event": "skipped", **about, "message": str(error)[:_SAID]})
        else:
            emit({"event": "error", **about, **_said(error)})
            if _device_is_broken():
                return BROKEN_DEVICE
        # What the last case took goes with the process.
        if not together and case != cases[-1]:
            _release()
    return 0


def _describe(job: Mapping[str, Any], emit: Emit) -> int:
    from tilescope.execution.describe import catalog  # noqa: PLC0415 - torch comes with it: from "ready" on it is the kernels' time

    emit({"event": "ready"})
    emit({"event": "catalog", "kernels": catalog(job.get("kernels", []), job.get("workloads", []))})
    return 0


def _ceilings(job: Mapping[str, Any], emit: Emit) -> int:
    from tilescope.execution import measured_rates  # noqa: PLC0415

    emit({"event": "ceilings", "ceilings": [dataclasses.asdict(ceiling) for ceiling in measured_rates.measure()]})
    return 0


def _protocol(path: str | None) -> Emit:
    """Opens the way for events: to ``path``, else to standard output. All other output goes to standard error from here on."""
    stream = open(path, "w", encoding="utf-8") if path else os.fdopen(os.dup(1), "w", encoding="utf-8")  # noqa: PTH123, SIM115
    os.dup2(2, 1)

    def emit(event: Mapping[str, Any]) -> None:
        stream.write(json.dumps(event) + "\n")
        stream.flush()

    return emit


def _synchronise() -> None:
    """Waits for the GPU: launches are asynchronous, and a fault has to show in the case that made it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _device_is_broken() -> bool:
    """Whether the CUDA context is lost: after a fault it answers every call with the same error until the process ends."""
    try:
        _synchronise()
    except Exception:
        return True
    return False


def _release() -> None:
    """Frees the GPU memory of a case, so that the next one finds as much as it would alone."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def _work_in(folder: str | None) -> None:
    """Has temporary files made in ``folder``, which is removed after this process even if that is killed.

    What is worth keeping stays where it would be: Inductor's cache lies among temporary files.
    """
    if folder is None:
        return
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    user = re.sub(r'[\\/:*?"<>|]', "_", user)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor_{user}"))
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def _die_with(supervisor: int | None) -> None:
    """Ends this process, and what wraps it, when the supervisor dies.

    The kernel of the system does it for a child. Under a wrapper such as ncu the supervisor is not our
    parent: a thread looks after it and takes the whole process group along.
    """
    if supervisor is None or die_with(supervisor):
        return

    def watch() -> None:
        while Path(f"/proc/{supervisor}").exists():
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name=WATCH).start()
