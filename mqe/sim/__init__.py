"""Simulators: interchangeable members behind ``mqe.sim.simulator.Simulator``."""
