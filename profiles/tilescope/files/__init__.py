"""Files of any kind, read with bounds and written to last. Knows nothing of runs, and imports neither torch nor triton."""
