"""Builds, lowers, runs, judges, signs and reports on programs for Qualcomm's QNN."""
