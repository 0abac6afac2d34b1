"""Runs lowered programs on the HTP emulator and judges what comes out."""
