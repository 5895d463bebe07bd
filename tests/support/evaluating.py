"""A policy's metrics in an environment of the test's own."""

from harl_mapush.evaluation.calculator import Policy, first_episodes
from mqe.env.environment import MultiAgentEnv
from mqe.tasks.episode_report import Metrics


def evaluate(env: MultiAgentEnv, policy: Policy) -> Metrics:
    """Measure a policy over each environment's first episode, by the task's report."""
    episodes = first_episodes(env, policy)
    return env.report.metrics(episodes, env.max_episode_length * env.step_dt, env.step_dt)
