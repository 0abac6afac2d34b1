"""Models, data and metrics of whoever uses this: where they are, and what they hold."""
