"""From changed files to a plan of sessions, a matrix of jobs, and one verdict on their results.

All modules are pure, except reading.py, which reads git and files, and results.py.
"""
