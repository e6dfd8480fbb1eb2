"""Nsight Compute: counters, NVIDIA's rules and counters by source line, each with the parser of its output."""
