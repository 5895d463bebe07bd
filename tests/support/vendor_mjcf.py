"""A robot in the form of a vendor's simulator, with its own numbers.

Torque motors and sensors are in message order, feet have their own contact numbers, and a mesh with
a missing file is visual only.
"""

from __future__ import annotations

MESSAGE_LEGS = ("FR", "FL", "RR", "RL")
FOOT_FRICTION = 0.35
TORQUE_LIMITS = {"hip": 20.0, "thigh": 21.0, "calf": 40.0}  # [N m]
_JOINTS = {
    "hip": ("1 0 0", "-1.1 1.1"),
    "thigh": ("0 1 0", "-1.6 3.5"),
    "calf": ("0 1 0", "-2.7 -0.8"),
}


def vendor_xml(side: float = 0.0955, worldbody: str = "") -> str:
    """Return the MJCF of a robot with a Go2's dimensions, its thighs ``side`` [m] beside its
    hips.
    """
    messages = [f"{leg}_{joint}" for leg in MESSAGE_LEGS for joint in _JOINTS]
    motors = "".join(
        f'<motor name="{name}" joint="{name}_joint" '
        f'ctrlrange="{-TORQUE_LIMITS[name[3:]]} {TORQUE_LIMITS[name[3:]]}"/>'
        for name in messages
    )
    sensors = "".join(
        f'<{kind} name="{name}_{kind}" joint="{name}_joint"/>'
        for kind in ("jointpos", "jointvel")
        for name in messages
    )
    return f"""
    <mujoco model="vendor">
      <compiler angle="radian" meshdir="assets" autolimits="true"/>
      <option cone="elliptic" impratio="100" timestep="0.0025"/>
      <default>
        <geom friction="0.3" margin="0.001" condim="1"/>
        <joint damping="0.1" armature="0.01" frictionloss="0.2"/>
      </default>
      <asset><mesh file="trunk_0.obj"/></asset>
      <worldbody>
        {worldbody}
        <body name="base_link" pos="0 0 0.4">
          <inertial pos="0.02 0 0" mass="7" diaginertia="0.03 0.09 0.1"/>
          <freejoint/>
          <geom type="mesh" mesh="trunk_0" contype="0" conaffinity="0"/>
          <geom type="box" size="0.19 0.047 0.057"/>
          {"".join(_leg(leg, side) for leg in ("FL", "FR", "RL", "RR"))}
        </body>
      </worldbody>
      <actuator>{motors}</actuator>
      <sensor>{sensors}</sensor>
      <keyframe><key name="home" qpos="0 0 0.3 1 0 0 0 {"0 0.9 -1.8 " * 4}"/></keyframe>
    </mujoco>"""


def _leg(leg: str, side: float) -> str:
    x = 0.1934 if leg[0] == "F" else -0.1934
    left = 1 if leg[1] == "L" else -1
    places = {
        "hip": (x, 0.0465 * left, 0.0),
        "thigh": (0.0, side * left, 0.0),
        "calf": (0.0, 0.0, -0.213),
    }
    inner = (
        f'<geom name="{leg}" size="0.022" pos="-0.002 0 -0.213" priority="1" condim="6" '
        f'friction="{FOOT_FRICTION} 0.02 0.01"/><body name="{leg}_foot" pos="0 0 -0.213"/>'
    )
    shapes = {"hip": "", "thigh": '<geom type="box" size="0.017 0.012 0.1" pos="0 0 -0.1"/>'}
    masses = {"hip": 0.7, "thigh": 1.1, "calf": 0.24}
    for joint in ("calf", "thigh", "hip"):
        axis, ends = _JOINTS[joint]
        pos = " ".join(map(str, places[joint]))
        down = 0.0 if joint == "hip" else -0.1
        inner = (
            f'<body name="{leg}_{joint}" pos="{pos}">'
            f'<inertial pos="0 0 {down}" mass="{masses[joint]}" diaginertia="0.005 0.005 0.001"/>'
            f'<joint name="{leg}_{joint}_joint" axis="{axis}" range="{ends}"/>'
            f"{shapes.get(joint, '')}{inner}</body>"
        )
    return inner
