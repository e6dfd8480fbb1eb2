"""The version of the code that runs, installed or not."""

VERSION = "0.1.0"
