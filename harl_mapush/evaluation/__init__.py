"""What a trained policy is worth: the calculator, the gait's examination, evaluation while training."""
