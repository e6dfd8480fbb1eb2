"""Profiling from Python and in notebooks."""
