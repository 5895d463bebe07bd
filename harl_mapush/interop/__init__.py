"""Files of other libraries: HARL's settings and models, OpenRL's policies, MAPush's task files."""
