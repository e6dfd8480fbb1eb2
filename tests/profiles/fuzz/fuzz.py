"""Many mutants, in processes of their own. Each process does a few hundred; one that dies is a crash of the mutant it was at."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: Mutants of each kind of one process.
SHARE = 60


def work(seed: int, first: int, last: int) -> None:
    """Does the mutants of every kind from ``first`` until ``last``, a line for each that is not told as it should be."""
    import targets

    targets.no_waiting()
    for number in range(first, last):
        for kind in targets.KINDS:
            print(f"at {number} {kind}", flush=True)
            place = Path(tempfile.mkdtemp(prefix="tilescope-fuzz-"))
            found = targets.mutant(kind, seed, number, place)
            shutil.rmtree(place, ignore_errors=True)
            if found:
                print(f"CRASH {kind} {seed} {number}: {found!r}", flush=True)
    for folder in (targets.base(), targets.half_base()):
        shutil.rmtree(folder.parent, ignore_errors=True)


def many(seed: int, count: int) -> list[str]:
    """A line for each fault among so many mutants of each kind."""
    wrong: list[str] = []
    place = 0
    while place < count:
        last = min(count, place + SHARE)
        argv = [sys.executable, __file__, str(seed), str(place), str(last)]
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=os.environ
        )
        lines = done.stdout.splitlines()
        wrong += [line for line in lines if line.startswith("CRASH ")]
        if done.returncode:
            number, kind = ([line.split()[1:] for line in lines if line.startswith("at ")] or [(place, "none")])[-1]
            wrong.append(f"CRASH {kind} {seed} {number}: died with {done.returncode}: {done.stderr[-2000:]!r}")
            last = int(number) + 1
        place = last
    return wrong


if __name__ == "__main__":
    work(*map(int, sys.argv[1:]))
