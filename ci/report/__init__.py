"""The verdict of a run: for machines (JSON, JUnit), for people (table, HTML, summary)."""
