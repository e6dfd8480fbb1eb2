"""Launches: called, caught, compiled for any target, timed with a cold L2."""
