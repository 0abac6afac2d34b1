"""Compiles, runs and judges cases, and makes their rows in the report. All engines and runners
share this code."""
