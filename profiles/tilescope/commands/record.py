"""``tilescope record``: a family of the library through every collector, published beside the code."""

from __future__ import annotations

import argparse
import shutil

from tilescope.commands import common


def command(subparsers: common.Subparsers) -> None:
    """Adds the parser."""
    parser = subparsers.add_parser("record", help="profile a family of the library and publish the run")
    parser.add_argument("family", metavar="FAMILY", help="such as norms; tilescope list names them")
    common.add_choices(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Records the family in place of its former recording, prints one line a case and what was replaced.

    A run that was interrupted is not published.
    """
    from tilescope import publish, results, store, suggest, supervisor  # noqa: PLC0415
    from tilescope.plan import Request, plan  # noqa: PLC0415

    async def planned() -> supervisor.Job:
        families: dict[str, list[str]] = {}
        for entry in await supervisor.describe():
            families.setdefault(entry["family"], []).append(entry["kernel"])
        if arguments.family not in families:
            raise ValueError(suggest.unknown("family", arguments.family, families))
        request = Request(
            kernels=tuple(families[arguments.family]),
            implementations=arguments.impl,
            workloads=arguments.workload,
            directions=arguments.directions,
            collectors=arguments.collect or ("auto",),
            target=arguments.target,
            settings=common.settings(arguments),
            title=arguments.family,
        )
        return await plan(request, arguments.runs)

    loaded, interrupted = common.run(planned)
    print(results.text(loaded.table))
    status = common.report(loaded, interrupted, loaded.run.failures)
    if interrupted:
        return status
    published = publish.publish(loaded, store.recorded_dir())
    print(f"published: {published}")
    for older in publish.replaced_by(published):
        shutil.rmtree(older)
        print(f"replaced: {older}")
    return status
