"""Changed files to a plan of sessions, a matrix of jobs, and one verdict on their results.

Pure, except reading.py, which reads git and the files of a tree.
"""
