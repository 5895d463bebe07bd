"""Building blocks for algorithms."""
