"""Components that work in the browser alone; each module has its script beside it."""
