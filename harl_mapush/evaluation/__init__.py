"""How trained policies are measured: the calculator, the gait's examination, evaluation while
training.
"""
