"""What runs in a simulator's own process, under its own interpreter: standard library and numpy, Python 3.8 or newer."""
