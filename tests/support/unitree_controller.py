"""Unitree's controller as its C++ sources define it, for one robot: it reads ``params/deploy.yaml``
and ``exported/policy.onnx``.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import onnxruntime
import yaml


class UnitreeController:
    """Terms, histories, clock and actions. Messages list motors in Unitree's SDK order."""

    def __init__(self, folder: Path) -> None:
        self.cfg = yaml.safe_load((folder / "params" / "deploy.yaml").read_text())
        self.session = onnxruntime.InferenceSession(
            str(folder / "exported" / "policy.onnx"), providers=["CPUExecutionProvider"]
        )
        self.motors = self.cfg["joint_ids_map"]
        self.nominal = np.array(self.cfg["default_joint_pos"], dtype=np.float32)

    def begin(self, message: dict[str, np.ndarray]) -> None:
        """Start an episode: every history is full of its first values."""
        self.message = message
        self.phase = 0.0
        self.action = np.zeros(len(self.motors), dtype=np.float32)
        self.histories = {}
        for name, term in self.cfg["observations"].items():
            first = getattr(self, name)()
            length = term["history_length"]
            self.histories[name] = deque([first] * length, maxlen=length)

    def step(self, message: dict[str, np.ndarray]) -> np.ndarray:
        """Return the motors' targets [rad] in the order of the SDK."""
        self.message = message
        values = []
        for name, term in self.cfg["observations"].items():
            assert term["clip"] is None
            self.histories[name].append(getattr(self, name)())
            values += [np.array(term["scale"]) * past for past in self.histories[name]]
        obs = np.concatenate(values).astype(np.float32)
        self.action = self.session.run(["actions"], {"obs": obs[None]})[0][0]
        term = self.cfg["actions"]["JointPositionAction"]
        targets = np.empty(len(self.motors), dtype=np.float32)
        targets[self.motors] = self.action * np.array(term["scale"]) + np.array(term["offset"])
        return targets

    def base_ang_vel(self) -> np.ndarray:
        return self.message["gyroscope"]

    def projected_gravity(self) -> np.ndarray:
        return self.message["gravity"]

    def velocity_commands(self) -> np.ndarray:
        ranges = self.cfg["commands"]["base_velocity"]["ranges"]
        low, high = np.array([ranges[k] for k in ("lin_vel_x", "lin_vel_y", "ang_vel_z")]).T
        return np.clip(self.message["joystick"], low, high)

    def joint_pos_rel(self) -> np.ndarray:
        return self.message["q"][self.motors] - self.nominal

    def joint_vel_rel(self) -> np.ndarray:
        return self.message["dq"][self.motors]

    def last_action(self) -> np.ndarray:
        return self.action

    def gait_phase(self) -> np.ndarray:
        period = self.cfg["observations"]["gait_phase"]["params"]["period"]
        self.phase = (self.phase + self.cfg["step_dt"] / period) % 1.0
        angle = 2.0 * np.pi * self.phase
        return np.array([np.sin(angle), np.cos(angle)])
