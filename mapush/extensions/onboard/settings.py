"""Settings for the onboard senses, with ranges from public sensors.

===================== ============================ ============================================
sensor                facts                        source
===================== ============================ ============================================
Intel RealSense D435i depth image, 87 x 58 deg,    data sheet, D400 series
                      0.3 to 3 m
Livox Mid-360         360 deg, 40 m at 10 %        user manual, Mid-360
                      reflectivity, 10 Hz, 2 cm at
                      10 m, 3 cm at 0.2 m
Unitree Go2, legs     error 2.2 m after a loop     abstract, arXiv:2602.17393
                      over 120 m, 1.8 % of it
===================== ============================ ============================================

Detection rates from 5 to 15 Hz, the camera's noise, latency, dropouts, biases and the heading's
drift have no public figures here. Their ranges are assumptions.
"""

from dataclasses import dataclass

from mqe.config import ConfigError, check_ranges, option
from mqe.world.randomization import Span, bounds
from mqe.world.scene import STEP_DT

WHOLE_TURN = 6.2832  # [rad] 2 pi, as people write it
LARGEST_RATE = 1.0 / STEP_DT  # [Hz] of control steps


@dataclass(frozen=True)
class OnboardCfg:
    """Section ``task.senses`` for the model ``onboard``. Each robot draws from a range in each
    episode.
    """

    field_of_view: Span = option(
        1.5184, "horizontal angle of view about the sensor's axis [rad]", above=0.0, max=WHOLE_TURN
    )
    sight: tuple[float, float] = option(
        (0.3, 3.0), "nearest and furthest measured distance from the sensor [m]", min=0.0, max=1e3
    )
    mounting_x: float = option(
        0.0, "position of the sensor ahead of the trunk's origin [m]", min=-2.0, max=2.0
    )
    mounting_yaw: float = option(
        0.0, "yaw of the sensor's axis on the trunk [rad]", min=-WHOLE_TURN, max=WHOLE_TURN
    )
    rate: Span = option((5.0, 15.0), "detection frames per second [Hz]", min=0.1, max=LARGEST_RATE)
    latency: Span = option(
        (0.05, 0.15), "delay from a frame to its detections [s]", min=0.0, max=2.0
    )
    dropout: Span = option(
        (0.0, 0.2),
        "fraction of frames in which a visible body is not detected, independent for each body",
        min=0.0,
        max=0.9,
    )
    dropout_time: float = option(
        0.5, "mean duration of a burst of missing detections [s]", min=0.0, max=100.0
    )
    place_noise: float = option(
        0.03, "standard deviation of a detected position along x and y [m]", min=0.0, max=10.0
    )
    place_bias: float = option(
        0.03, "largest constant error of detected positions in an episode [m]", min=0.0, max=10.0
    )
    heading_noise: float = option(
        0.05, "standard deviation of a detected heading [rad]", min=0.0, max=3.2
    )
    heading_bias: float = option(
        0.03, "largest constant error of detected headings in an episode [rad]", min=0.0, max=3.2
    )
    drift: float = option(
        0.02, "largest odometry error as a fraction of the distance walked", min=0.0, max=1.0
    )
    heading_drift: float = option(
        0.002, "largest drift of the odometry's heading per metre walked [rad/m]", min=0.0, max=1.0
    )
    memory_time: float = option(
        5.0, "time after which a robot forgets an unseen body [s]", min=STEP_DT, max=1e6
    )

    def __post_init__(self) -> None:
        check_ranges(self, "task.senses")
        if self.memory_time <= bounds(self.latency)[1]:
            raise ConfigError(
                "task.senses.memory_time: detections arrive later than that; say 5, or lower "
                "task.senses.latency"
            )
