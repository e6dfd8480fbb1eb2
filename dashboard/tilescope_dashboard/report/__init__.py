"""The report of runs as one file, and as a site. ``build`` makes its content; ``html`` and ``markdown`` write it."""

from tilescope_dashboard.report.command import command, render

__all__ = ["command", "render"]
