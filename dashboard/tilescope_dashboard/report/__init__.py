"""The report of runs as one file, and as a site. ``build`` makes its content; ``html`` and ``markdown`` write it."""

from typing import Any

from tilescope_dashboard.report import command as report
from tilescope_dashboard.report import site_command
from tilescope_dashboard.report.command import render

__all__ = ["command", "render"]


def command(subparsers: Any) -> None:
    """Adds ``tilescope report`` and ``tilescope site`` (an entry point of the group ``tilescope.commands``)."""
    report.command(subparsers)
    site_command.command(subparsers)
