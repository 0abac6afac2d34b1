"""Read ELF files into immutable facts. No other package reads ELF files."""
