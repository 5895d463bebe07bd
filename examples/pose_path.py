"""A path of poses: a team brings its object to one pose after the other.

python pose_path.py [CHECKPOINT [TIME_LIMIT]] leads pretrained:pose, or another team trained with
task.goal_heading, for at most 180 s. Its object is a T-block at 4 kg. The script reads poses from
its input lines, "x y heading" [m, m, degrees]. Without input they are a quarter turn.
"""

import math
import sys

import torch

import mapush

PLACE_TOLERANCE = 0.25  # [m]
HEADING_TOLERANCE = math.radians(10.0)
QUARTER_TURN = ["1.5 0 0", "2.5 0.5 30", "3 1.5 60", "3 3 90"]


def main(checkpoint: str = "pretrained:pose", time_limit: str = "180") -> None:
    """Lead the team from pose to pose, and print when the object was at each."""
    lines = [] if sys.stdin.isatty() else sys.stdin.read().splitlines()
    settings = {
        "task.object": "tblock",
        "task.object_mass": 4.0,
        "task.success_ends": False,
        "task.spawn": "separated",
        "task.episode_length_s": float(time_limit),
    }
    env, team = mapush.load_team(checkpoint, num_envs=1, seed=1, settings=settings)
    decision_s = env.decision_period * env.step_dt
    env.reset()
    num_decisions = 0
    for line in lines or QUARTER_TURN:
        x, y, degrees = (float(word) for word in line.split())
        goal = torch.tensor([[x, y, math.radians(degrees)]], device=env.device)
        obs, _ = env.set_goal(goal)
        is_there = False
        while not is_there:
            step = env.step(team(obs))
            obs = step.obs
            num_decisions += 1
            if bool(step.done):
                # The next episode has begun, with a goal of its own.
                print(f"{num_decisions * decision_s:.1f} s: ended before {line}")  # noqa: T201
                env.close()
                return
            turn = env.task.heading_error(env.state.object_yaw).abs()
            is_near = env.state.goal_distance < PLACE_TOLERANCE
            is_there = bool(is_near & (turn < HEADING_TOLERANCE))
        print(f"{num_decisions * decision_s:.1f} s: at {line}")  # noqa: T201
    env.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
