"""A memory of timings on a full disk."""

import contextlib
import sqlite3

from tilescope.tuning import memory


def fill(path):
    """Makes a memory at ``path`` that can be read, and refuses to store anything."""
    memory.Memory(path).keep(memory.Problem("", "", "", "", "", ""), {})
    with contextlib.closing(sqlite3.connect(path)) as database:
        refuse = "SELECT RAISE(FAIL, 'database or disk is full')"
        database.execute(f"CREATE TRIGGER full BEFORE INSERT ON timings BEGIN {refuse}; END")
