"""Import paths of MAPush's fork for HARL, for its scripts."""
