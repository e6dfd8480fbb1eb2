"""``tilescope profile``: run cases through collectors, print what they found, name the run's folder."""

from __future__ import annotations

import argparse

from tilescope.commands import common


def command(subparsers: common.Subparsers) -> None:
    """Adds the parser."""
    parser = subparsers.add_parser("profile", help="run kernels through the collectors and record a run")
    parser.add_argument("kernels", nargs="+", metavar="KERNEL", help="catalog name or path/to/file.py:SPEC")
    common.add_choices(parser)
    parser.add_argument("--title", default="", help="what to call the run")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Profiles and prints one line a case."""
    from tilescope import results  # noqa: PLC0415
    from tilescope.plan import Request, plan  # noqa: PLC0415

    request = Request(
        kernels=tuple(dict.fromkeys(arguments.kernels)),
        collectors=arguments.collect or ("auto",),
        title=arguments.title,
        **common.chosen(arguments),
    )
    loaded, interrupted = common.run(lambda: plan(request, arguments.runs))
    print(f"{loaded.run.device.name} ({loaded.run.settings['target']})"
          + ("" if loaded.run.device.measured else ": predicted, no such GPU took part"))  # fmt: skip
    print(results.text(loaded.table))
    return common.report(loaded, interrupted, loaded.run.failures)
