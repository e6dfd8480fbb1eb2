"""Options that choose cases, shared by the commands that run kernels, and the arguments of scripts behind them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: The flags that only ``tilescope watch`` has.
OF_WATCH = ("--once", "--text")


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
    parser.add_argument(
        "--repetitions", type=_count, metavar="N", help="number of timings of a case (50; 20 or more of a long one)"
    )
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
    value = _number(text)
    if not 1 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no ratio of at least 1, such as 1.15")
    return value


def seconds(text: str) -> float:
    """A number of seconds above 0. Raises ArgumentTypeError."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def _number(text: str) -> float:
    """The number; 0 for another text."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no whole number above 0 and below 10^18")
    return int(text)


def add_to_profile(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``tilescope profile``."""
    add_choices(parser)
    parser.add_argument("--title", default="", help="the run's title")


def split(given: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of ``tilescope``, and those of the script, if there is one.

    ``tilescope script.py …`` is ``tilescope profile script.py …``, with options of that before the script, too.
    """
    if given[:1] == ["upgrade"] and "--" in given:
        return given[: given.index("--")], given[given.index("--") + 1 :]
    options = _options()
    flags = [name for name, action in options.items() if action.nargs == 0]
    flags += OF_WATCH if given[:1] == ["watch"] else ()
    first = given[0].partition("=")[0] if given else ""
    begun = ["profile", *given] if first in options or is_script(first) else given
    if begun[:1] in (["profile"], ["watch"], ["model"]):
        for place in range(1, len(begun)):
            before = begun[place - 1]
            flag = any(name.startswith(before) for name in flags)
            value = before.startswith("--") and "=" not in before and not flag
            if is_script(begun[place]) and not value:
                return begun[: place + 1], begun[place + 1 :]
    return given, []


def own_arguments(script: str, given: list[str], flags: Sequence[str] = ()) -> list[str]:
    """The script's arguments without a ``--`` that begins them.

    Raises ValueError for an option of ``tilescope profile``, or one of ``flags``, before ``--``.
    """
    end = given.index("--") if "--" in given else len(given)
    for name in (word.partition("=")[0] for word in given[:end]):
        if name in {*_options(), *flags}:
            raise ValueError(
                f"{name} stands behind {script}, so it is the script's: put it before {script}, or write -- before the script's "
                f"own options: {script} -- {name}"
            )
    return given[1:] if given[:1] == ["--"] else given


def is_script(text: str) -> bool:
    """Whether it names a Python file and no variable in it."""
    return text.endswith(".py")


def _options() -> dict[str, argparse.Action]:
    """The options of ``tilescope profile``, by name."""
    known = argparse.ArgumentParser(add_help=False)
    add_to_profile(known)
    return known._option_string_actions
