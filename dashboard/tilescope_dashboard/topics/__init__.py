"""A topic's findings in words. No Panel here."""
