"""Studies: kernels that are compared with each other. A spec asks one question and its implementations are the answers.

A study is measured like any other kernel. Its functions are not exported, because they serve no other purpose.
"""
