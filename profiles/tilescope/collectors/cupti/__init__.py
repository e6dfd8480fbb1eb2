"""CUPTI's Range Profiler: hardware counters in the worker's own process, without Nsight Compute."""
