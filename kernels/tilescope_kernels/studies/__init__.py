"""Studies: small kernels that isolate one effect. A spec asks a question, and its implementations are compared to answer it.

A study is measured like any other kernel. Its functions are not exported.
"""
