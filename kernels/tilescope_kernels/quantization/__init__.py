"""Conversions to and from INT8, FP8 and NF4."""
