"""A person's script, profiled by ``tilescope profile`` in a process of its own."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from tilescope.table.case import readable

_COMMAND = (sys.executable, "-P", "-m", "tilescope", "profile")
#: The command's progress lines.
_PROGRESS = re.compile(r"(?:(\d+) of (\d+): )?(.*), \d+ s")
_RUN, _FAILED = "run: ", "failed: "
#: Limit of a line, in bytes.
_LONGEST = 2**20


async def profile(script: Path, told: Callable[[Mapping[str, Any]], Any]) -> Path:
    """Profile the script's launches and return the run's folder.

    ``told`` receives progress events like those of ``tilescope.jobs.supervisor.run``. Raises ValueError with the command's message where
    there is no run. Cancelling ends the command, which keeps finished cases.
    """
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, "--title", script.name, str(script), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, limit=_LONGEST,
    )  # fmt: skip
    told({"event": "waiting", "doing": f"running {script.name}"})
    written, last, folder = cast(asyncio.StreamReader, process.stdout), "", ""
    failed: set[str] = set()
    try:
        while line := (await written.readline()).decode(errors="replace"):
            last = line.strip() or last
            if line.startswith(_RUN):
                folder = line.removeprefix(_RUN).strip()
                told({"event": "done", "folder": folder})
            elif line.startswith(_FAILED):
                # The command repeats its failures at its end, with the captured file instead of the kernel.
                collector, _, said = line.removeprefix(_FAILED).strip().partition(" ")
                message = f"{collector} {readable(said)}"
                if message not in failed:
                    told({"event": "error", "message": message})
                failed.add(message)
            elif last:
                told(_event(last))
        ended = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.communicate()
    if not folder:
        raise ValueError(
            last.removeprefix("tilescope: ") or f"{script.name} ended with status {ended} and printed nothing."
        )
    return Path(folder)


def _event(line: str) -> dict[str, Any]:
    found = _PROGRESS.fullmatch(line)
    if found is None:
        return {"event": "case", "doing": line}
    counted = {"index": int(found[1]), "of": int(found[2])} if found[1] else {}
    return {"event": "case", "doing": found[3], **counted}
