"""A worker that has a CUDA context before its one job is known, because making one takes longer than most timings.

The fork server prepares one after a job that used the GPU, while nothing is measured. A worker under ncu cannot be forked and
stands by instead (``tilescope.jobs.standby``).
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

#: Exists where the NVIDIA driver is loaded. The import of torch's compiler then opens it, after which no fork can use the GPU.
DRIVER = Path("/dev/nvidiactl")
#: Seconds that a worker stands by, and seconds between two looks for its job.
IDLE, _LOOK = 600.0, 0.005


@dataclass
class ReadyWorker:
    """A process that waits for a job on the other end of ``connection``."""

    pid: int
    connection: socket.socket

    def give(self, request: dict[str, Any], output: int) -> bool:
        """Hands over the request and the descriptor for its output. Returns False where the process has ended."""
        try:
            socket.send_fds(self.connection, [json.dumps(request).encode()], [output])
        except OSError:
            return False
        finally:
            self.connection.close()
        return True


def prepare(compiling: bool = True) -> None:
    """Makes a CUDA context, if the GPU can be shared. Never raises.

    With ``compiling`` it forks the host that compiles for races first, which must have no context. torch.compile's imports are
    left to workers that need them, because they take long.
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
            # Caches the assembler's version, which every compilation needs.
            make_backend(target).hash()
            _rehearse()


def _rehearse() -> None:
    """Draws random numbers and times a call, because CUDA loads kernels at their first launch and is slow on the first graph."""
    import torch  # noqa: PLC0415 - the server has imported it

    from tilescope.collectors import events  # noqa: PLC0415

    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        generator = torch.Generator("cuda").manual_seed(0)
        drawn = torch.randn(8, device="cuda", generator=generator).to(torch.bfloat16)
        events.measured(drawn.clone, repetitions=1, rotate=1)
    torch.cuda.empty_cache()


def wait(connection: socket.socket) -> tuple[dict[str, Any], int]:
    """Waits for a request; returns it and the descriptor for its output. Ends the process where the server closes instead."""
    said, files, _, _ = socket.recv_fds(connection, resident.LONGEST, 1)
    connection.close()
    if not said or not files:
        os._exit(0)
    return json.loads(said), files[0]


def stand_by(job: Path) -> None:
    """Imports a job's modules, makes a CUDA context once the GPU is free or the job exists, and returns once the job exists.

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
    """Returns once one of the files exists; ends the process if none does at the time ``until``."""
    while not any(file.exists() for file in files):
        if time.monotonic() > until:
            os._exit(0)
        time.sleep(_LOOK)
