"""Small kernels, one for each construct of Triton's language that people use, each with what it should give."""
