"""``tilescope record``: profiles a family of the library, or its autotune sweeps, and publishes the run beside the code."""

from __future__ import annotations

import argparse
import shutil

from tilescope.commands import choices, running


def command(subparsers: choices.Subparsers) -> None:
    parser = subparsers.add_parser("record", help="profile a family of the library and publish the run")
    parser.add_argument("family", metavar="FAMILY", help="such as norms; tilescope list names them")
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="instead, compile and time every config of each kernel's largest workload",
    )
    choices.add_choices(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Records the family in place of its former recording; prints one line a case, and the replaced recordings.

    After an interruption the finished cases are published, and the former recording stays.
    """
    from tilescope.jobs import questions  # noqa: PLC0415
    from tilescope.jobs.job import Job  # noqa: PLC0415
    from tilescope.jobs.plan import Request, plan  # noqa: PLC0415
    from tilescope.jobs.tuning import plan_tuning  # noqa: PLC0415
    from tilescope.models import text_table  # noqa: PLC0415
    from tilescope.runs import publish, store  # noqa: PLC0415
    from tilescope.table import suggest  # noqa: PLC0415

    async def planned() -> Job:
        families: dict[str, list[str]] = {}
        for entry in await questions.describe():
            families.setdefault(entry["family"], []).append(entry["kernel"])
        if arguments.family not in families:
            raise ValueError(suggest.unknown("family", arguments.family, families))
        kernels = tuple(families[arguments.family])
        if arguments.sweep:
            if arguments.collect:
                raise ValueError("--sweep has collectors of its own: leave out --collect")
            job, _ = await plan_tuning(
                kernels,
                runs_dir=arguments.runs,
                **choices.chosen(arguments),
                title=f"{arguments.family}: autotune sweeps",
                exhaustive=True,
            )
            return job
        request = Request(
            kernels=kernels,
            collectors=arguments.collect or ("auto",),
            title=arguments.family,
            **choices.chosen(arguments),
        )
        return await plan(request, arguments.runs)

    loaded, interrupted = running.run(planned)
    print(text_table.text(loaded))
    # A config of a sweep may fail, which is a result; the run lists them.
    failures = [failure for failure in loaded.run.failures if not (arguments.sweep and failure.case)]
    status = running.report(loaded, interrupted, failures)
    published = publish.publish(publish.finished(loaded) if interrupted else loaded, store.recorded_dir())
    print(f"published: {published}")
    for older in publish.replaced_by(published):
        if interrupted:
            print(f"not replaced: {older}")
            continue
        shutil.rmtree(older)
        print(f"replaced: {older}")
    return status
