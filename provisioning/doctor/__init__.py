"""Is an environment fit? Facts, checks, verdict."""
