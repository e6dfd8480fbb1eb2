"""The commands, in the order that ``tilescope --help`` lists them.

Each module has ``command(subparsers)``, which adds a parser whose ``run`` default takes the parsed arguments and
returns the exit status. Modules import what they need when they run, so that ``--help`` is quick.
"""

from tilescope.commands import (
    advise,
    catalog,
    check,
    claims,
    compare,
    doctor,
    fuse,
    gate,
    mcp,
    open,
    profile,
    publish,
    record,
    recover,
    resume,
    show,
    tune,
)

COMMANDS = (
    catalog.command,
    check.command,
    profile.command,
    tune.command,
    show.command,
    open.command,
    compare.command,
    gate.command,
    advise.command,
    fuse.command,
    resume.command,
    recover.command,
    publish.command,
    record.command,
    claims.command,
    doctor.command,
    mcp.command,
)
