"""The CI system that this runs in: its groups, annotations, masks, summaries and variables."""
