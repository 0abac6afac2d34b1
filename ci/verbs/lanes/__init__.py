"""Verbs that judge cases, and what they share."""
