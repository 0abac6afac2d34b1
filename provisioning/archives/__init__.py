"""Archive -> tree, with every path checked."""
