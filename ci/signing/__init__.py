"""Sign Hexagon libraries, verify them from their bytes, and record what was signed."""
