"""Names of files in the folder of a sweep."""

SETTINGS = "settings.yaml"  # of every trial
