"""A stand-in for Isaac Gym: tensors and names, without physics."""
