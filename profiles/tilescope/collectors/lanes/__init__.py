"""Lanes: what each warp of a few programs does and what it waits for, timed by records that are inserted into the compiled code."""
