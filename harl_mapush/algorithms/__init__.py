"""Learning algorithms, one file each, and their contract."""
