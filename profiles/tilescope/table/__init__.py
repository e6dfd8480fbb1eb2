"""The tidy table: its schema, metrics, cases, units and values of source lines."""
