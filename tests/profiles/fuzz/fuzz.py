"""Many mutants, in processes of their own: ``python tests/profiles/fuzz/fuzz.py run --count 10000 --seed 1``.

Each process does a few hundred; one that dies is a crash of the mutant it was at.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
KINDS = ("run", "artefact", "half", "foreign")
#: A mutant of each.
EVERY = "every"
#: Mutants of one process.
SHARE = 250


def work(kind: str, seed: int, first: int, last: int) -> None:
    """Does the mutants from ``first`` until ``last``, a line for each that is not told as it should be."""
    sys.path.insert(0, str(HERE))
    import targets

    targets.no_waiting()
    for number in range(first, last):
        print(f"at {number}", flush=True)
        for one in KINDS if kind == EVERY else [kind]:
            place = Path(tempfile.mkdtemp(prefix="tilescope-fuzz-"))
            found = targets.mutant(one, seed, number, place)
            shutil.rmtree(place, ignore_errors=True)
            if found:
                print(f"CRASH {one} {seed} {number}: {found!r}", flush=True)
    for folder in (targets.base(), targets.half_base()):
        shutil.rmtree(folder.parent, ignore_errors=True)


def many(kind: str, seed: int, count: int, start: int = 0) -> list[str]:
    """What was wrong with so many mutants, a line each."""
    wrong: list[str] = []
    place, end = start, start + count
    while place < end:
        last = min(end, place + SHARE)
        argv = [sys.executable, __file__, kind, "--seed", str(seed), "--work", str(place), str(last)]
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=os.environ
        )
        lines = done.stdout.splitlines()
        wrong += [line for line in lines if line.startswith("CRASH ")]
        print(f"{kind}, seed {seed}: until {last}, {len(wrong)} crashes", file=sys.stderr, flush=True)
        at = max((int(line[3:]) for line in lines if line.startswith("at ")), default=place)
        if done.returncode:
            wrong.append(f"CRASH {kind} {seed} {at}: died with {done.returncode}: {done.stderr[-2000:]!r}")
            last = at + 1
        place = last
    return wrong


def main() -> int:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=(*KINDS, EVERY))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        work(chosen.kind, chosen.seed, *chosen.work)
        return 0
    wrong = many(chosen.kind, chosen.seed, chosen.count, chosen.start)
    print("\n".join(wrong))
    print(f"{chosen.kind}, seed {chosen.seed}: {chosen.count} mutants from {chosen.start}, {len(wrong)} crashes")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
