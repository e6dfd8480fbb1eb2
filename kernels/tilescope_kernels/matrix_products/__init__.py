"""Matrix products of 16 bits, FP8 and INT8."""
