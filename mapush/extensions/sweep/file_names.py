"""Names of files in a sweep's folder."""

SETTINGS = "settings.yaml"  # of every trial
