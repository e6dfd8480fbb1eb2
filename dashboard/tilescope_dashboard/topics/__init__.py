"""A module a topic: the columns of its tables, its finding as a sentence, and what of a frame is shown. No Panel, no HTML."""
