"""The search for the fastest config: pruned before it is compiled, raced, remembered."""
