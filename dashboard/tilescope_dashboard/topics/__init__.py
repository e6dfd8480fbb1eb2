"""Topics, a module each: columns of tables, the headline sentence, and the choice of rows. No Panel, no HTML."""
