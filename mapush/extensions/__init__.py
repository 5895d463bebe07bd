"""Optional parts outside the core. See mapush/built_in.py."""
