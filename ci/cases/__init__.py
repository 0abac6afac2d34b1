"""The pipeline from a case to its row in the report, the same for every engine and runner."""
