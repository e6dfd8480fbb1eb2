"""Helpers that several families use. Private to the package."""
