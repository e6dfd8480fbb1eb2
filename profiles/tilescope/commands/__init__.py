"""The commands, in the order that ``tilescope --help`` lists them.

Each module has ``command(subparsers)``, which adds a parser whose ``run`` default takes the parsed arguments and
returns the exit status. Modules import their dependencies when they run, so that ``--help`` is fast.
"""

#: The module of each command.
COMMANDS = {
    "profile": "profile", "watch": "watch", "model": "model", "check": "check", "tune": "tune", "resume": "resume", "list": "catalog", "show": "show",
    "open": "open", "advise": "advise", "compare": "compare", "gate": "gate", "fuse": "fuse", "doctor": "doctor",
    "mcp": "mcp", "recordings": "recordings", "upgrade": "upgrade",
}  # fmt: skip
#: The maintainer's commands, below ``recordings``. At the top they are accepted and not listed.
RECORDINGS = ("record", "publish", "claims", "recover")
#: The commands that the help lists, by group. It only names the others.
GROUPS = {
    "Profile": ("profile", "watch", "model", "tune"),
    "Read": ("show", "open", "advise", "report"),
    "Compare and gate": ("compare", "gate"),
    "Serve and examine": ("serve", "doctor"),
}
