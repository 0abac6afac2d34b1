"""The report of a run: for machines (JSON, JUnit) and for people (table, HTML, summary)."""
