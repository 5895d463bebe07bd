"""The learning algorithms, one file each, and the contract that they share."""
