"""The only reader of ELF files: a file becomes frozen facts."""
