"""What a reviewer of a change is told: what differs from before, and the lines that failed."""
