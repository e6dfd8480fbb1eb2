"""The commands, in the order that ``tilescope --help`` lists them.

Each module has ``add(parser)``, which adds the command's arguments, and ``run(arguments)``, which takes the parsed ones and returns
the exit status. A module is imported only for its own command, so that ``--help`` is fast.
"""

from __future__ import annotations

import argparse
import importlib

#: The module of each command, and its line of help.
COMMANDS = {
    "profile": ("profile", "run kernels, or a script, through the collectors and record a run"),
    "watch": ("watch", "profile a script again at every save, and say what changed"),
    "model": ("model", "rank the kernels of a training or inference step, and say what to do next"),
    "check": ("check", "compare kernels with their reference"),
    "tune": ("tune", "try every config of a kernel, best first"),
    "resume": ("resume", "resume an interrupted run, or count what a limit left out"),
    "list": ("catalog", "list the kernels, their implementations and workloads"),
    "show": ("show", "list the runs, or print one of them"),
    "open": (
        "open",
        "make runs of other tools' files: ncu, torch.profiler, Proton, Perfetto, tritonparse, Inductor, Helion",
    ),
    "advise": ("advise", "explain why a run's kernels are slow, and what to do"),
    "compare": ("compare", "show what changed between runs, implementations or kernels"),
    "gate": ("gate", "status 1 when a change makes kernels slower or larger"),
    "fuse": ("fuse", "predict the speedup from fusing a chain of operations"),
    "doctor": ("doctor", "report what works on this machine, and how to cure what does not"),
    "mcp": ("mcp", "serve profile, advise, compare and list_runs to an agent over stdio"),
    "recordings": ("recordings", "record, publish, claims, recover: keep runs beside the code"),
    "upgrade": ("upgrade", "what another Triton or PyTorch does to your launches"),
}
#: The maintainer's commands, below ``recordings``. At the top they are accepted and not listed.
RECORDINGS = {
    "record": ("record", "profile the library, in place of its recordings; run again, it goes on"),
    "publish": ("publish", "copy a run, or some of its kernels, with the artefacts that views draw"),
    "claims": ("claims", "claims, byte ratios and measurements of the recorded runs"),
    "recover": ("recover", "keep the finished cases of a run whose process died"),
}
#: The commands that the help lists, by group. It only names the others.
GROUPS = {
    "Profile": ("profile", "watch", "model", "tune"),
    "Read": ("show", "open", "advise", "report"),
    "Compare and gate": ("compare", "gate"),
    "Serve and examine": ("serve", "doctor"),
}
#: The commands that need a worker at once. Its imports and those of the command run side by side.
WARMED = ("profile", "check", "tune")


def fill(parser: argparse.ArgumentParser, module: str) -> None:
    """Gives a command's parser its arguments and what it runs."""
    command = importlib.import_module(f"tilescope.commands.{module}")
    command.add(parser)
    parser.set_defaults(run=getattr(command, "run", None))
