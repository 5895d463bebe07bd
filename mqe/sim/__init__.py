"""Simulators: interchangeable members behind ``mqe.sim.base.Simulator``."""
