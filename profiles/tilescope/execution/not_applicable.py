"""The error of a case that a collector cannot handle. Imports nothing: what interprets depends on little."""


class NotApplicable(Exception):
    """A case that the collector cannot handle. It is skipped with this message and does not count as failed."""
