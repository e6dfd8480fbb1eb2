"""The search for the fastest config: pruned, compiled in a pool, raced, remembered."""
