"""MQE's own import paths, for its scripts."""
