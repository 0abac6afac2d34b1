"""Models to lower: the suite and the user's own, with their data, metrics and float references."""
