"""The parts that algorithms are built from."""
