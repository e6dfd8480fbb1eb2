"""``tilescope doctor``: examines this machine, and names cures."""

from __future__ import annotations

import argparse
import json

from tilescope.jobs.doctor import examine


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings. Always succeeds, because a finding is not an error."""
    findings = examine()
    if arguments.json:
        print(json.dumps([vars(finding) for finding in findings], indent=1))
        return 0
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{'ok ' if finding.ok else '-- '} {finding.name:<{width}}  {finding.found}")
        if finding.cure:
            print(f"    {'':<{width}}  cure: {finding.cure}")
    return 0
