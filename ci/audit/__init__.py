"""Finds which parts of a model QNN executes, what the parts on the CPU cost, and where accuracy is
lost."""
