"""MQE's own import paths, for scripts that were written for it; everything else is elsewhere."""
