"""The commands, in the order that ``tilescope --help`` lists them.

Each module has ``command(subparsers)``, which adds a parser whose ``run`` default takes the parsed arguments and
returns the exit status. Modules import their dependencies when they run, so that ``--help`` is fast.
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
)  # fmt: skip

COMMANDS = tuple(
    module.command
    for module in (
        catalog, check, profile, tune, show, open, compare, gate, advise, fuse, resume, recover, publish, record, claims,
        doctor, mcp,
    )
)  # fmt: skip
