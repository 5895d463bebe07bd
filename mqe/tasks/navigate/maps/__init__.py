"""Maps: arenas with obstacles, drawn by a family or read from a file."""
