"""The only reader of ELF files: it turns a file into frozen facts."""
