"""``tilescope profile``: runs cases with collectors, and prints the results and the run's folder.

``tilescope profile script.py`` runs a script and profiles its launches.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilescope.commands import choices, running

if TYPE_CHECKING:
    from tilescope.jobs.job import OnEvent
    from tilescope.jobs.process import Standby

#: The flags that only ``tilescope watch`` has.
OF_WATCH = ("--once", "--text")
#: Characters of an option behind a script that may be a shortened one of this command: ``--tar``.
_SHORTEST = 5


def command(subparsers: choices.Subparsers) -> None:
    parser = subparsers.add_parser("profile", help="run kernels, or a script, through the collectors and record a run")
    parser.add_argument(
        "kernels",
        nargs="+",
        metavar="KERNEL",
        help="catalog name, path/to/file.py:SPEC, or a script: arguments after script.py (or script.py --) are its own",
    )
    _add_options(parser)
    parser.set_defaults(run=run)


def _add_options(parser: argparse.ArgumentParser) -> None:
    choices.add_choices(parser)
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

    Raises ValueError for an option of this command, or one of ``flags``, before ``--``, also for one that is shortened to a
    word that the script does not contain.
    """
    end = given.index("--") if "--" in given else len(given)
    options = {*_options(), *flags}
    for name in (word.partition("=")[0] for word in given[:end]):
        meant = [option for option in options if option.startswith(name)] if len(name) >= _SHORTEST else []
        if name in options or (len(meant) == 1 and not _contains(script, name)):
            what = "it" if name in options else meant[0]
            raise ValueError(
                f"{name} stands behind {script}, so it is the script's: put {what} before {script}, or write -- before the script's "
                f"own options: {script} -- {name}"
            )
    return given[1:] if given[:1] == ["--"] else given


def _contains(script: str, option: str) -> bool:
    """Whether the script's text has the option, or its name as a word: it may be the script's own."""
    with contextlib.suppress(OSError):
        text = Path(script).read_text(encoding="utf-8", errors="replace")
        return option in text or bool(re.search(rf"\b{re.escape(option.strip('-').replace('-', '_'))}\b", text))
    return False


def is_script(text: str) -> bool:
    """Whether it names a Python file and no variable in it."""
    return text.endswith(".py")


def run(arguments: argparse.Namespace) -> int:
    """Profiles and prints one line a case."""
    from tilescope.jobs import warm  # noqa: PLC0415

    warm.prepare()  # the imports of the workers and of this process run side by side
    with running.standing_by(arguments.collect) as standing:
        if is_script(arguments.kernels[-1]):
            return _run_script(arguments, standing)
        from tilescope.jobs.plan import Request, plan  # noqa: PLC0415

        request = Request(
            kernels=tuple(dict.fromkeys(arguments.kernels)),
            collectors=arguments.collect or ("auto",),
            title=arguments.title,
            **choices.chosen(arguments),
        )
        return running.show(*running.run(lambda: plan(request, arguments.runs), standing))


def _options() -> dict[str, argparse.Action]:
    """The options of this command, by name."""
    known = argparse.ArgumentParser(add_help=False)
    _add_options(known)
    return known._option_string_actions


def _run_script(arguments: argparse.Namespace, standing: Mapping[str, Standby] | None) -> int:
    """Runs the script and profiles its launches, even if it failed later."""
    from tilescope.notebook import script_jobs  # noqa: PLC0415

    *others, script = arguments.kernels
    of_script = own_arguments(script, arguments.of_script)
    if others:
        raise ValueError(f"{script} is a script: profile it by itself, or name its kernel as {script}:SPEC")
    ended = list[str]()

    async def work(progress: OnEvent) -> None:
        *_, bad = await script_jobs.profile(
            script, choices.settings(arguments), arguments=of_script, target=arguments.target, title=arguments.title,
            collect=arguments.collect, runs_dir=arguments.runs, on_event=progress, standing=standing,
        )  # fmt: skip
        ended.extend(filter(None, [bad]))

    status = running.show(*running.follow(work))
    for bad in ended:
        print(f"note: {bad}: its launches until then were profiled")
    return status or int(bool(ended))
