"""Finds the cause of a red verdict by experiments. A diagnosis asks for experiments, and gets
answers; it does none itself, so that a table of answers tests it."""
