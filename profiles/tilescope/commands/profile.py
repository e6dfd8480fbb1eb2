"""``tilescope profile``: runs cases with collectors, and prints the results and the run's folder.

``tilescope profile script.py`` runs a script and profiles its launches.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from tilescope.commands import choices, running
from tilescope.jobs.job import OnEvent
from tilescope.jobs.plan import Request, plan
from tilescope.jobs.process import Standby
from tilescope.notebook import script_jobs


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kernels",
        nargs="+",
        metavar="KERNEL",
        help="catalog name, path/to/file.py:SPEC, or a script: arguments after script.py (or script.py --) are its own",
    )
    choices.add_to_profile(parser)


def run(arguments: argparse.Namespace) -> int:
    """Profiles and prints one line a case."""
    with running.standing_by(arguments.collect) as standing:
        if choices.is_script(arguments.kernels[-1]):
            return _run_script(arguments, standing)
        request = Request(
            kernels=tuple(dict.fromkeys(arguments.kernels)),
            collectors=arguments.collect or ("auto",),
            title=arguments.title,
            **choices.chosen(arguments),
        )
        return running.show(*running.run(lambda: plan(request, arguments.runs), standing))


def _run_script(arguments: argparse.Namespace, standing: Mapping[str, Standby] | None) -> int:
    """Runs the script and profiles its launches, even if it failed later."""
    *others, script = arguments.kernels
    of_script = choices.own_arguments(script, arguments.of_script)
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
