"""What a reader of the core need not know; see mapush/built_in.py."""
