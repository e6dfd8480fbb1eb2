"""``tilescope record``: profiles the library on all GPUs of this host, or its autotune sweeps, and publishes it beside the code."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import shutil
import sys
from pathlib import Path

from tilescope.commands import choices, running
from tilescope.hardware import device
from tilescope.jobs import recording
from tilescope.jobs.plan import AUTO, choose_target
from tilescope.jobs.recording import Part
from tilescope.models import recorded_claims, terminal
from tilescope.runs import recordings, store


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help="only these, such as norms; tilescope list names them"
    )
    parser.add_argument(
        "--sweep", action="store_true", help="instead, compile and time every config of each kernel's largest workload"
    )
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="the number of GPUs that share the work (all of this host)"
    )
    parser.add_argument(
        "--without-gpu", action="store_true", help="make only the part that needs no GPU, and publish nothing"
    )
    parser.add_argument(
        "--join", type=Path, metavar="FOLDER", help="take the part without a GPU from this folder (its --runs)"
    )
    parser.add_argument("--share", metavar="I/N", help="measure only what GPU I of N would, and publish nothing")
    choices.add_choices(parser)


def run(arguments: argparse.Namespace) -> int:
    """Records in parts, joins and publishes them. Prints the published and the replaced recordings.

    After an interruption nothing is published: the same command goes on. A case that failed is in the recording.
    """
    if arguments.sweep and arguments.collect:
        raise ValueError("--sweep has collectors of its own: leave out --collect")
    work = arguments.runs or store.runs_dir() / "recording"
    store.check_writable(work)
    named = [name for name in arguments.collect if name != AUTO]
    choice = recording.Choice(arguments.families, choices.chosen(arguments), named, arguments.sweep)
    catalog = asyncio.run(choice.catalog())
    target, _ = choose_target(arguments.target)
    compiling = dataclasses.replace(choice, chosen={**choice.chosen, "target": target})
    if arguments.without_gpu:
        return _run_parts(compiling.parts(catalog, 0, 1), work)
    if arguments.share:
        share, _, of = arguments.share.partition("/")
        return _run_parts(choice.parts(catalog, int(share), int(of)), work)
    gpus = recording.visible()[: arguments.gpus]
    if not gpus and not arguments.sweep and choice.needs_gpu():
        raise ValueError(f"{device.unavailable()}: --without-gpu makes the part that needs none")
    for name, reason in choice.unavailable().items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    shares = range(1, (len(gpus) or int(arguments.sweep)) + 1)
    parts = {share: choice.parts(catalog, share, len(shares)) for share in shares}
    of_cpu = [] if arguments.sweep else compiling.parts(catalog, 0, 1)
    if arguments.join and not all(recording.found(arguments.join, part.title) for part in of_cpu):
        raise ValueError(
            f"{arguments.join} lacks the part of these families and options: make it with --without-gpu --runs {arguments.join}"
        )
    command = [sys.executable, "-m", "tilescope", *arguments.given]
    beside = [
        ([*command, "--share", f"{share}/{len(shares)}"], gpus[share - 1] if gpus else "")
        for share in shares
        if parts[share]
    ]
    if of_cpu and not arguments.join:
        beside.append(([*command, "--without-gpu", "--target", target], ""))
    if status := recording.beside(beside):
        return status
    folders = [recording.found(work, part.title) for share in shares for part in parts[share]]
    folders += [recording.found(arguments.join or work, part.title) for part in of_cpu]
    joined = recording.join([folder for folder in folders if folder], work)
    published, replaced = recording.publish_each(joined, choice.titles(catalog), store.recorded_dir())
    recordings.pool_texts(store.recorded_dir())
    recorded_claims.keep()
    for folder in published:
        print(f"published: {folder}")
    for folder in replaced:
        print(f"replaced: {folder}")
    for folder in {joined, *(found for found in folders if found and found.parent == work)}:
        shutil.rmtree(folder)
    return 0


def _run_parts(parts: list[Part], work: Path) -> int:
    """Runs the parts one after the other, and prints their failures and folders."""
    for part in parts:
        loaded, interrupted = running.follow(lambda progress, part=part: part.run(work, progress))  # type: ignore[misc]
        # A case that fails is a result; a collector that fails leaves the part incomplete.
        running.tell([one for one in loaded.run.failures if one.case])
        terminal.say(*running.warnings(loaded))
        status = running.report(loaded, interrupted, [one for one in loaded.run.failures if not one.case])
        if status or not loaded.run.complete:
            return status or 1
    return 0
