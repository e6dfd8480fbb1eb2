"""A worker that is ready before anyone asks: it has a CUDA context, and waits for its one job.

A context takes longer than most timings. The fork server makes one such worker after a job that used the GPU, while nothing is
being measured; one that ncu wraps stands by (``tilescope.jobs.standby``), for it cannot be forked.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilescope.hardware import device
from tilescope.jobs import resident, standby

#: There where the NVIDIA driver is loaded. What imports torch's compiler opens it, and no process forks well after that.
DRIVER = Path("/dev/nvidiactl")
#: Seconds that a worker stands by, and between two looks for its job.
IDLE, _LOOK = 600.0, 0.005


@dataclass
class ReadyWorker:
    """A process that waits for a job on the other end of ``connection``."""

    pid: int
    connection: socket.socket

    def give(self, request: dict[str, Any], output: int) -> bool:
        """Hands over the request and where its output goes. False where the process has ended."""
        try:
            socket.send_fds(self.connection, [json.dumps(request).encode()], [output])
        except OSError:
            return False
        finally:
            self.connection.close()
        return True


def prepare(compiling: bool = True) -> None:
    """Makes a CUDA context, where other programs may have one too, and before it the process that compiles for races, which must
    have none, if there is to be one. Never raises.

    What torch.compile imports is left to who needs it: it takes longer than the next question is away.
    """
    with contextlib.suppress(Exception):
        if device.shareable():
            import torch  # noqa: PLC0415 - the server has imported it
            import triton  # noqa: PLC0415
            from triton.compiler.compiler import make_backend  # noqa: PLC0415

            if compiling:
                from tilescope.tuning import compile_pool  # noqa: PLC0415

                compile_pool.prepare()
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
            target = triton.runtime.driver.active.get_current_target()
            # Asks the assembler for its version, which every compilation needs.
            make_backend(target).hash()
            _rehearse()


def _rehearse() -> None:
    """Draws a number and times it: CUDA loads each kernel when it is launched first, and takes longest over the first graph."""
    import torch  # noqa: PLC0415 - the server has imported it

    from tilescope.collectors import events  # noqa: PLC0415

    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        generator = torch.Generator("cuda").manual_seed(0)
        drawn = torch.randn(8, device="cuda", generator=generator).to(torch.bfloat16)
        events.measured(drawn.clone, repetitions=1, rotate=1)
    torch.cuda.empty_cache()


def wait(connection: socket.socket) -> tuple[dict[str, Any], int]:
    """The request that is given at last, and where its output goes. Ends the process where the server closes instead."""
    said, files, _, _ = socket.recv_fds(connection, resident.LONGEST, 1)
    connection.close()
    if not said or not files:
        os._exit(0)
    return json.loads(said), files[0]


def stand_by(job: Path) -> None:
    """Imports what a job needs, makes a CUDA context when the GPU is free or the job is there, and returns once the job is there.

    Ends the process after ``IDLE`` seconds.
    """
    with contextlib.suppress(Exception):
        import torch  # noqa: F401, PLC0415 - takes longest, and touches no GPU
        import triton  # noqa: F401, PLC0415

        from tilescope.collectors import events  # noqa: F401, PLC0415
        from tilescope.execution import execute  # noqa: F401, PLC0415
    until = time.monotonic() + IDLE
    _await(until, job.with_name(standby.FREE), job)
    prepare(compiling=False)
    _await(until, job)


def _await(until: float, *files: Path) -> None:
    """Returns once one of the files is there; ends the process ``until`` when none is."""
    while not any(file.exists() for file in files):
        if time.monotonic() > until:
            os._exit(0)
        time.sleep(_LOOK)
