"""Models, schemes, lowering to QNN and the audit of what was delegated."""
