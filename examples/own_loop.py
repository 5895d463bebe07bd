"""An actor loop of your own: build worlds, choose actions in any way, and read the results.

python own_loop.py [NUM_ENVS [NUM_DECISIONS]]
"""

import sys

import torch

import mapush


def act(obs: torch.Tensor) -> torch.Tensor:
    """Walk towards the object, the second pair of numbers in every agent's observation, (N, A, O)
    to (N, A, 3).
    """
    to_object = obs[..., 2:4]
    turn = torch.atan2(to_object[..., 1:], to_object[..., :1])
    return torch.cat((to_object / to_object.norm(dim=-1, keepdim=True), turn), dim=-1).clamp(
        -1.0, 1.0
    )


def main(num_envs: int = 16, num_decisions: int = 200) -> None:
    """Run the loop on this machine's fastest simulator, and print its results."""
    settings = {"task.object": "cuboid", "task.decision_period": 5, "task.episode_length_s": 20.0}
    env = mapush.make("go1push_mid", num_envs=num_envs, seed=0, settings=settings)
    obs, _ = env.reset()
    total = torch.zeros(num_envs, device=env.device)
    for _ in range(num_decisions):
        step = env.step(act(obs))
        obs = step.obs
        total += step.reward.mean(dim=1)
    print(f"mean reward of {num_decisions} decisions: {float(total.mean()):.2f}")  # noqa: T201
    print(env.statistics())  # noqa: T201
    env.close()


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:3]))
