"""``tilescope mcp``: a server of the Model Context Protocol over standard input and output, for programs that write kernels.

Its tools return the documents of ``json_documents``. A request that cannot be served is refused in one line.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tilescope.commands import advise as advise_command
from tilescope.commands import compare as compare_command
from tilescope.commands import running
from tilescope.jobs import supervisor, warm
from tilescope.jobs.plan import Request, plan
from tilescope.models import compare as model
from tilescope.models import json_documents
from tilescope.models.documents import Document
from tilescope.runs import store
from tilescope.table.case import readable
from tilescope.version import VERSION

_MISSING = "the MCP server needs a package that is not installed: pip install 'tilescope[mcp]'"
_INSTRUCTIONS = (
    "Tilescope profiles Triton kernels and says why each is fast or slow. Call profile first, or list_runs for what was "
    "profiled before; then advise and compare take a run's id. Values are in base SI units and name their source; null is "
    "not known. A case that is 'impossible' was measured wrong: do not report its speed."
)
#: Number of runs that a tool lists by default.
_LISTED = 20
Tool = Callable[..., Awaitable[dict[str, Any]]]


def add(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(arguments: argparse.Namespace) -> int:
    """Serves until standard input ends. Raises ValueError where the SDK is not installed."""
    server().run()
    return 0


def server() -> Any:
    """The server, an ``MCPServer`` of the SDK. Raises ValueError where the SDK is not installed."""
    try:
        from mcp.server import MCPServer  # noqa: PLC0415 - an optional extra
        from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(_MISSING) from error
    made = MCPServer("tilescope", instructions=_INSTRUCTIONS, version=VERSION, log_level="WARNING")
    for tool in (list_runs, profile, advise, compare):
        made.tool()(_refusing(tool, ToolError))
    return made


async def list_runs(limit: int = _LISTED) -> dict[str, Any]:
    """Lists the newest runs, at most `limit`: their ids, kernels, GPUs, and which collectors took part."""
    if limit < 1:
        raise ValueError("limit must be at least 1")
    return _data(json_documents.runs(store.list_runs()[:limit]))


async def profile(
    kernels: list[str],
    collectors: list[str] | None = None,
    workloads: list[str] | None = None,
    implementations: list[str] | None = None,
    target: str = "",
) -> dict[str, Any]:
    """Profiles kernels into a new run and returns advice on the largest workload of each.

    A kernel is a name of Tilescope's library, or path/to/file.py:SPEC for a KernelSpec of your own, whose code is run on this
    machine. Without collectors these are check, compiler and interpreter, which need no GPU and predict; ["auto"] takes all
    that this machine can run, and measures where it has a GPU. target is the architecture to compile for, such as sm_90.
    It takes seconds to minutes; fewer workloads are quicker.
    """
    if not kernels:
        raise ValueError("name a kernel: softmax, or path/to/file.py:SPEC")
    request = Request(
        kernels=tuple(dict.fromkeys(kernels)),
        implementations=tuple(implementations or ()),
        workloads=tuple(workloads or ()),
        collectors=tuple(collectors or ("check", "compiler", "interpreter")),
        target=target,
    )
    warm.prepare()
    # Progress is not printed, because standard output is the protocol's.
    loaded = store.open_run(await supervisor.run(await plan(request), lambda event: None))
    if set(loaded.table["source"]) <= {store.MODEL} and loaded.run.failures:
        first = loaded.run.failures[0]
        raise ValueError(f"nothing could be profiled: {first.collector} {readable(first.case)}: {first.message}")
    return _data(advise_command.document(loaded))


async def advise(
    run: str = "latest", kernel: str = "", impl: str = "", direction: str = "", workload: str = ""
) -> dict[str, Any]:
    """Says why a run's kernels are slow, what each cure could win, and whether a measurement is impossible.

    run is an id, the unique start of one, or latest. direction is forward or backward. Without a workload it is the largest of
    each kernel; "all" takes every one.
    """
    wanted = {"kernel": kernel, "impl": impl, "direction": direction, "workload": workload}
    return _data(advise_command.document(store.open_run(running.found(run)), **wanted))


async def compare(baseline: str, candidate: str, kernel: str = "") -> dict[str, Any]:
    """Compares two runs, or two implementations as RUN:IMPL, case by case: speedups with their 95 % intervals.

    speedup is the baseline's time over the candidate's: above 1 the candidate is faster. A case is slower or faster only where its
    interval excludes 1. Times are not compared across settings; the obstacles say why. The changes name GPUs that differ.
    """
    one, two = (model.side(side, running.found, store.open_run) for side in (baseline, candidate))
    return _data(json_documents.comparison(one, [two], [compare_command.compared(one, two, kernel)]))


def _data(document: Document) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(document)
    return found


def _refusing(tool: Tool, refusal: type[Exception]) -> Tool:
    """The tool, whose refusals are the protocol's: one line, without a traceback."""

    @functools.wraps(tool)
    async def served(*arguments: Any, **named: Any) -> dict[str, Any]:
        try:
            return await tool(*arguments, **named)
        except (ValueError, OSError) as error:
            raise refusal(" ".join(str(error).split())) from error

    return served
