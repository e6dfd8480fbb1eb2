"""Components that work in the browser alone. Each module's script lies beside it."""
