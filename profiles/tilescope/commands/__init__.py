"""The commands, in the order that ``tilescope --help`` lists them.

Each module has ``command(subparsers)``, which adds a parser whose ``run`` default takes the parsed arguments and
returns the exit status. Modules import their dependencies when they run, so that ``--help`` is fast.
"""

import importlib

COMMANDS = tuple(
    importlib.import_module(f"tilescope.commands.{name}").command
    for name in (
        "catalog", "check", "profile", "tune", "show", "open", "compare", "gate", "advise", "fuse", "resume", "recover",
        "publish", "record", "claims", "doctor", "mcp",
    )
)  # fmt: skip
