"""Options that choose cases, shared by the commands that run kernels."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

Subparsers = Any  # argparse keeps the class of add_subparsers() private


def names(text: str) -> list[str]:
    """The parts of ``a,b``."""
    return [part.strip() for part in text.split(",") if part.strip()]


def add_choices(parser: argparse.ArgumentParser, collect: bool = True) -> None:
    """Adds options that choose cases, ``add_settings``, and with ``collect`` options that choose collectors."""
    listed: dict[str, Any] = {"type": names, "action": "extend", "default": []}
    parser.add_argument("--impl", metavar="NAME,…", help="implementations (all that are available)", **listed)
    parser.add_argument(
        "--workload", metavar="ID,…", help="workloads: a label, or 1823x781-fp32 (all declared)", **listed
    )
    parser.add_argument(
        "--problems",
        type=Path,
        metavar="FILE",
        help="the workloads that a model's step has (tilescope model --problems FILE)",
    )
    parser.add_argument("--pass", dest="directions", metavar="NAME,…", help="forward, backward (both)", **listed)
    add_settings(parser, collect)


def add_settings(parser: argparse.ArgumentParser, collect: bool = True) -> None:
    """Adds the target and the settings of a job, and with ``collect`` options that choose collectors."""
    listed: dict[str, Any] = {"type": names, "action": "extend", "default": []}
    parser.add_argument(
        "--target", default="", metavar="sm_90", help="architecture to compile for (this GPU's, or sm_90)"
    )
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="longest silence of a worker (600)")
    parser.add_argument("--repetitions", type=_count, metavar="N", help="number of timings of a case (50)")
    parser.add_argument(
        "--interpreter-limit",
        type=seconds,
        metavar="SECONDS",
        help="most work to interpret a case (40; a captured launch 12, then a few of its programs; check: 5)",
    )
    parser.add_argument(
        "--not-finite",
        action="store_true",
        default=None,
        help="without a GPU, name the line and the operands of the first NaN or infinity that a kernel stores",
    )
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="where runs go ($TILESCOPE_RUNS)")
    if collect:
        parser.add_argument(
            "--collect", metavar="NAME,…", help="auto (all that can run here), or collectors by name", **listed
        )
        parser.add_argument(
            "--lanes-slowdown",
            type=_ratio,
            metavar="RATIO",
            help="most that lanes' records may slow a kernel down before fewer kinds of operations have them (1.15)",
        )
        parser.add_argument(
            "--renew-ceilings",
            action="store_true",
            default=None,
            help="measure this GPU's ceilings again, even if they are known for its driver and these versions",
        )


def chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """The choices except collectors, by their names in ``Request`` and ``plan_tuning``.

    Raises ValueError for a file of problems without any of the kernel, and with several kernels.
    """
    return {
        "implementations": arguments.impl,
        "workloads": [*arguments.workload, *(_of_problems(arguments) if arguments.problems else ())],
        "directions": arguments.directions,
        "target": arguments.target,
        "settings": settings(arguments),
    }


def _of_problems(arguments: argparse.Namespace) -> list[str]:
    """The workloads of the command's kernel in the file of problems."""
    from tilescope.models import step_problems  # noqa: PLC0415

    kernels = [arguments.kernel] if hasattr(arguments, "kernel") else getattr(arguments, "kernels", [])
    if len(kernels) != 1:
        raise ValueError("--problems takes the workloads of one kernel: name one")
    return step_problems.read(arguments.problems, kernels[0])


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The given settings, by their names in ``Job.settings``."""
    given = {
        "timeout": arguments.timeout,
        "repetitions": arguments.repetitions,
        "interpreter_limit": arguments.interpreter_limit,
        "not_finite": arguments.not_finite,
        "renew_ceilings": getattr(arguments, "renew_ceilings", None),
        "lanes_slowdown": getattr(arguments, "lanes_slowdown", None),
    }
    return {name: value for name, value in given.items() if value is not None}


def _ratio(text: str) -> float:
    """A ratio of at least 1. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no ratio of at least 1, such as 1.15")
    return value


def seconds(text: str) -> float:
    """A number of seconds above 0. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no whole number above 0 and below 10^18")
    return int(text)
