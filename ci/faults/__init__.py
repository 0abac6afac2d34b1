"""Searches for faults of QNN's compiler with generated graphs, shrinks these graphs, and recognizes
known faults in a user's model."""
