"""Jobs: planned, supervised, shared out over worker processes. Imports neither torch nor triton."""
