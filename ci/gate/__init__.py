"""Changed files to a plan of sessions, a matrix of jobs, and one verdict on their results.

Pure but for reading.py, which reads git and the files of a tree.
"""
