"""Plan sessions from changed files, make a matrix of jobs, and judge their results together.

All modules are pure, except reading.py, which reads git and files, and results.py, which reads
results.
"""
