"""Models to lower: the suite's and the user's, with their data, metrics and float references."""
