"""Compare the facts of both sides under a policy and return findings. No module here reads or
writes files.
"""
