"""What a test has in place of Isaac Gym: its tensors and names, without its physics."""
