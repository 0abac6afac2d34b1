"""Plan sessions from changed files, make a matrix of jobs, and judge their results together.

Only three modules read anything from disk: reading.py (git and the files of a tree), results.py
(what the jobs wrote) and rules.py (manifests/policies/gate.toml).
"""
