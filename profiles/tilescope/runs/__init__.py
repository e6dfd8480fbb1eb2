"""Runs on disk: read, written, listed, published, and whether their code is still the one here."""
