"""Finds which parts of a model QNN executes, what the others cost, and where accuracy is lost."""
