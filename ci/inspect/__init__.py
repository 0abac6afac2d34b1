"""Inspect lowered programs, context binaries, libraries, APKs and AARs: what their bytes contain,
whether a runtime can load them, and whether an Android app can run QNN."""
