"""Planners: where the object should go next, on maps with obstacles."""
