"""Models as users bring them, to see that the gate is never the cause of a red case."""
