"""Collectors on a Ray cluster."""
