"""The worker: the only process that launches kernels. Run as ``python -m tilescope.jobs.worker JOB.json``.

The job names an ``action`` (``capture``, ``describe``, ``ceilings``, or a function by its dotted path) and its arguments. The answers are events, one JSON line
each, written to the job's file ``events``, or to standard output without one. Kernels, compilers and wrappers may print
anything, because file descriptor 1 is redirected to standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilescope import collectors
from tilescope.execution.not_applicable import NotApplicable
from tilescope.execution.parentage import WATCH, die_with
from tilescope.jobs import warm, worker_output
from tilescope.jobs.worker import fork_server
from tilescope.table.case import Case
from tilescope.table.sources import KNOWN

#: Exit status of a worker whose device no longer answers; the supervisor starts another for the remaining cases.
BROKEN_DEVICE = 3

#: The most characters of a message and of its traceback: some libraries print a whole tensor.
_SAID, _DETAILS = 2000, 64 << 10

Emit = Callable[[Mapping[str, Any]], None]


def main(arguments: list[str]) -> int:
    """Runs the job in the file that ``arguments`` names, and waits for the file on standby. Returns the exit status."""
    file, *standing = arguments
    if standing:
        waited_for = int(standing[1])
        _die_with(waited_for or None)
        fork_server.stand_by(Path(file), kept=not waited_for)
    job = json.loads(Path(file).read_text(encoding="utf-8"))
    if standing:
        # Not cleared: the wrapper's variables stay.
        os.environ.update(job["environment"])
        os.chdir(job["directory"])
    _die_with(job.get("supervisor"))
    _work_in(job.get("temporary"))
    emit = _protocol(job.get("events"))
    # Triton 3.9 says in each process that its next release fuses less.
    warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION is unset")
    try:
        status = _action(job["action"])(job, emit)
    except KeyboardInterrupt:  # passed on by a process that says so
        return 130
    except Exception as error:
        emit({"event": "error", "case": "", **_said(error, starting=True)})
        return 1
    if status == 0:
        emit({"event": "done"})
    return status


def line(error: BaseException) -> str:
    """An exception in one line: the first line of its message, after its type unless it is a ValueError.

    An assertion without a message is followed by the line of code that failed.
    """
    try:
        said = str(error)[:_SAID]
    except Exception:  # str() of a kernel's own exception may raise
        said = ""
    text = next((part.strip() for part in said.splitlines() if part.strip()), "")
    if isinstance(error, AssertionError) and not text:
        text = next((frame.line or "" for frame in traceback.extract_tb(error.__traceback__)[-1:]), "")
    plain = isinstance(error, ValueError) and text
    return text if plain else f"{type(error).__name__}: {text}" if text else type(error).__name__


def _said(error: BaseException, starting: bool = False) -> dict[str, str]:
    """The fields of an event that reports an error; ``environment`` names the machine's lacking resource, if that caused it."""
    lacking = worker_output.lacking(error, starting)
    said = {"message": line(error), "detail": "".join(traceback.format_exception(error))[-_DETAILS:]}
    return {**said, "environment": lacking} if lacking else said


def _action(name: str) -> Callable[[Mapping[str, Any], Emit], int]:
    module, dot, function = name.rpartition(".")
    if dot:
        found: Callable[[Mapping[str, Any], Emit], int] = getattr(importlib.import_module(module), function)
        return found
    return {"capture": _capture, "describe": _describe, "ceilings": _ceilings}[name]


def _capture(job: Mapping[str, Any], emit: Emit) -> int:
    if job.get("beside"):  # the processes share the processors: none compiles in more processes of its own
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        if known := sys.modules.get("torch._inductor.config"):
            known.compile_threads = 1  # type: ignore[attr-defined]
    for number, one in enumerate((job, *job.get("then", ()))):
        if number:
            _release(0)
        if one.get("waits"):
            _wait(Path(job["temporary"]).with_name(warm.GO), emit)
        cases = [Case(**case) for case in one["cases"]]
        folder, settings = Path(one["folder"]).absolute(), one.get("settings", {})
        if status := collect(one["collector"], cases, folder, settings, emit):
            return status
    return 0


def _wait(file: Path, emit: Emit) -> None:
    """Returns once the file exists. Tells that this process is alive."""
    for look in itertools.count():
        if file.exists():
            return
        if look % 200 == 0:
            emit({"event": "waiting", "look": look})
        time.sleep(0.005)


def collect(name: str, cases: Sequence[Case], folder: Path, settings: Mapping[str, Any], emit: Emit) -> int:
    """Captures the cases with one collector, into ``folder``, and emits what became of each. Returns the exit status."""
    emit({"event": "start", "of": len(cases)})
    folder.mkdir(exist_ok=True)
    module = collectors.load(name)
    doing = KNOWN[name].doing if name in KNOWN else "running"
    from tilescope.execution import execute  # noqa: PLC0415 - torch comes with it: "start" explains the wait

    specs: dict[str, Any] = {}
    held = 0

    def load(kernel: str) -> Any:
        return specs[kernel] if kernel in specs else specs.setdefault(kernel, execute.load_spec(kernel))

    def begin(case: Case, doing: str = doing) -> None:
        about = {"case": case.id, "collector": name, "doing": doing}
        emit({"event": "case", "index": cases.index(case), "of": len(cases), **about})

    def one_by_one() -> Iterator[tuple[Case, BaseException | None]]:
        for case in cases:
            begin(case)
            try:
                with _kept_process():
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
            emit({"event": "result", **about, "artefact": str(folder / f"{case.slug}{module.SUFFIX}")})
        elif isinstance(error, NotApplicable):
            emit({"event": "skipped", **about, "message": str(error)[:_SAID], "limited": error.limited})
        else:
            emit({"event": "error", **about, **_said(error)})
            if _device_is_broken():
                return BROKEN_DEVICE
        # The last case's memory is freed with the process.
        if not together and case != cases[-1]:
            held = _release(held)
    return 0


@contextlib.contextmanager
def _kept_process() -> Iterator[None]:
    """Restores the working directory and the environment, which a case's code may change, for the next case."""
    folder, variables = Path.cwd(), dict(os.environ)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it was removed meanwhile
            os.chdir(folder)
        if os.environ != variables:
            os.environ.clear()
            os.environ.update(variables)


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
    """Opens the stream of events: ``path``, or standard output, and all other output then goes to standard error."""
    stream = open(path, "w", encoding="utf-8") if path else os.fdopen(os.dup(1), "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if not path:
        os.dup2(2, 1)

    def emit(event: Mapping[str, Any]) -> None:
        stream.write(json.dumps(event) + "\n")
        stream.flush()

    return emit


def _synchronise() -> None:
    """Waits for the GPU, so that a fault of an asynchronous launch is raised in its own case."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _device_is_broken() -> bool:
    """Whether the CUDA context is lost after a fault; every later call then fails until the process ends."""
    try:
        _synchronise()
    except Exception:
        return True
    return False


def _release(held: int) -> int:
    """Frees the GPU memory of a case, so that the next one has as much as it would alone. Returns the bytes that stay.

    Garbage is collected only where a case leaves more than the ``held`` bytes of the one before: it takes longer than many a case.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return held
    if torch.cuda.memory_allocated() > held:
        gc.collect()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_allocated())


def _work_in(folder: str | None) -> None:
    """Sets ``folder`` for temporary files; it is removed even if this process is killed.

    Inductor's cache, which is also among temporary files, keeps its usual place.
    """
    if folder is None:
        return
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(worker_output.inductor_cache()))
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def _die_with(supervisor: int | None) -> None:
    """Ends this process, and what wraps it, when the supervisor dies.

    Linux does so for a child. Under a wrapper such as ncu the supervisor is not the parent, so a thread watches it and kills the
    process group.
    """
    if supervisor is None or die_with(supervisor):
        return

    def watch() -> None:
        while Path(f"/proc/{supervisor}").exists():
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name=WATCH).start()
