"""Record updates of upstream HARL's on-policy algorithms: ``python
tests/support/record_on_policy.py FOLDER [CASE ...]``.

Upstream's actors, critics, buffers, ``collect``, ``compute`` and ``train`` run unmodified over
synthetic rollouts. A recording holds their permutations and the parts of the layout
``harl-parity-1``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box
from harl.algorithms.actors import ALGO_REGISTRY
from harl.algorithms.critics import CRITIC_REGISTRY
from harl.common.buffers.on_policy_actor_buffer import OnPolicyActorBuffer
from harl.common.buffers.on_policy_critic_buffer_ep import OnPolicyCriticBufferEP
from harl.common.buffers.on_policy_critic_buffer_fp import OnPolicyCriticBufferFP
from harl.common.valuenorm import ValueNorm
from harl.runners.on_policy_ha_runner import OnPolicyHARunner
from harl.runners.on_policy_ma_runner import OnPolicyMARunner
from torch import Tensor

from tests.support import recording_file
from tests.support.harl_recording import FORMAT, NUM_STAGES
from tests.support.record_off_policy import copied

ENVS = 4
STEPS = 6
TRAIN = {
    "use_valuenorm": True,
    "use_linear_lr_decay": False,
    "use_proper_time_limits": True,
}
MODEL = {
    "hidden_sizes": [6, 4],
    "activation_func": "relu",
    "use_feature_normalization": True,
    "initialization_method": "orthogonal_",
    "gain": 0.01,
    "use_naive_recurrent_policy": False,
    "use_recurrent_policy": False,
    "recurrent_n": 1,
    "data_chunk_length": 10,
    "lr": 0.0005,
    "critic_lr": 0.0005,
    "opti_eps": 1e-05,
    "weight_decay": 0,
    "std_x_coef": 1,
    "std_y_coef": 0.5,
}
ALGO = {
    "critic_epoch": 5,
    "use_clipped_value_loss": True,
    "clip_param": 0.2,
    "critic_num_mini_batch": 1,
    "value_loss_coef": 1,
    "use_max_grad_norm": True,
    "max_grad_norm": 10.0,
    "use_gae": True,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "use_huber_loss": True,
    "use_policy_active_masks": True,
    "huber_delta": 10.0,
    "action_aggregation": "prod",
    "share_param": False,
    "fixed_order": False,
}
CLIPPED = {"ppo_epoch": 5, "actor_num_mini_batch": 1, "entropy_coef": 0.01}
PLAIN = {"a2c_epoch": 5, "actor_num_mini_batch": 1, "entropy_coef": 0.01}
SHARED = {"share_param": True, "fixed_order": True}
TIGHT = {"clip_param": 0.02, "max_grad_norm": 0.05, "huber_delta": 0.05}
FEW_EPOCHS = {"ppo_epoch": 2, "critic_epoch": 2}  # more would amplify rounding beyond 1e-6
WITH_A_REST = {"actor_num_mini_batch": 3, "critic_num_mini_batch": 7}  # of 20 rows
NAIVE = {"use_recurrent_policy": True, "use_naive_recurrent_policy": True, "data_chunk_length": 1}
ONE_REJECTED_STEP = {"kl_threshold": 0.5, "ls_step": 1, "accept_ratio": 0.5, "backtrack_coeff": 0.8}


class Sizes(NamedTuple):
    """Numbers in an observation, an action and a state."""

    obs: int = 5
    action: int = 2
    state: int = 7


class Case(NamedTuple):
    """A configuration of upstream, and the team that it learns with."""

    algo: str
    settings: dict[str, Any]
    model: dict[str, Any] = {}
    agents: int = 2
    state_type: str = "EP"
    steps: int = STEPS
    agents_die: bool = False
    sizes: Sizes = Sizes()


OF_MAPUSH = Sizes(8, 3, 17)  # other tests play with its actors
CASES = {
    "haa2c_2a": Case("haa2c", PLAIN),
    "happo_2a_fp": Case("happo", CLIPPED, state_type="FP", agents_die=True),
    "happo_2a_gru_rest": Case("happo", CLIPPED | WITH_A_REST | FEW_EPOCHS, NAIVE, steps=5),
    "happo_2a_tightclip": Case(
        "happo", CLIPPED | TIGHT, {"lr": 0.003, "critic_lr": 0.003}, sizes=OF_MAPUSH
    ),
    "happo_3a_dead": Case("happo", CLIPPED, agents=3, agents_die=True),
    "hatrpo_2a_reject": Case("hatrpo", ONE_REJECTED_STEP),
    "mappo_2a_gru": Case(
        "mappo",
        CLIPPED | SHARED,
        {"use_recurrent_policy": True, "data_chunk_length": 3},
    ),
    "mappo_3a_dead": Case("mappo", CLIPPED | SHARED, agents=3, agents_die=True),
    "mappo_noshare_2a": Case("mappo", CLIPPED | {"fixed_order": True}),
}


def record(name: str) -> dict[str, Any]:
    """Run one case: two iterations, with the learner before and after each."""
    case = CASES[name]
    torch.manual_seed(7)
    rng = np.random.default_rng(7)
    runner = make_runner(case)
    observe(runner, rng, first=True)
    stages = []
    for _ in range(NUM_STAGES):
        for step in range(case.steps):
            data = runner.collect(step)
            observe(runner, rng, data, case.agents_die)
        runner.compute()
        before = learner(runner)
        buffers = rollout(runner)
        with watching(runner) as drawn:
            runner.train()
        stages.append(
            {
                "pre": before,
                "buffer": buffers,
                "computed": computed(runner, case, drawn),
                "post": learner(runner),
                "randperm": drawn["randperm"],
            }
        )
        runner.after_update()
    return {
        "format": FORMAT,
        "meta": {"case": name, "algo": case.algo, "package": "harl-aht 0.1.0"},
        "config": runner.algo_args,
        "env": {
            "n_agents": case.agents,
            "state_type": case.state_type,
            "T": case.steps,
            "N": ENVS,
            "obs_dim": case.sizes.obs,
            "share_obs_dim": case.sizes.state,
            "act_dim": case.sizes.action,
        },
        "stages": stages,
    }


def make_runner(case: Case) -> Any:
    """Build the input for upstream's methods, without environments and folders."""
    train = TRAIN | {
        "n_rollout_threads": ENVS,
        "episode_length": case.steps,
        "num_env_steps": ENVS * case.steps * NUM_STAGES,
    }
    config = {"train": train, "model": MODEL | case.model, "algo": ALGO | case.settings}
    merged = {**config["train"], **config["model"], **config["algo"]}
    obs, action, state = (Box(-1.0, 1.0, (size,), np.float32) for size in case.sizes)
    runner = object.__new__(OnPolicyMARunner if case.algo == "mappo" else OnPolicyHARunner)
    runner.algo_args = config
    runner.num_agents = case.agents
    runner.state_type = case.state_type
    runner.share_param = merged["share_param"]
    runner.fixed_order = merged["fixed_order"]
    runner.action_aggregation = merged["action_aggregation"]
    runner.recurrent_n = merged["recurrent_n"]
    runner.rnn_hidden_size = merged["hidden_sizes"][-1]
    if runner.share_param:
        runner.actor = [ALGO_REGISTRY[case.algo](merged, obs, action)] * case.agents
    else:
        runner.actor = [ALGO_REGISTRY[case.algo](merged, obs, action) for _ in range(case.agents)]
    runner.actor_buffer = [OnPolicyActorBuffer(merged, obs, action) for _ in range(case.agents)]
    runner.critic = CRITIC_REGISTRY[case.algo](merged, state)
    if case.state_type == "FP":
        runner.critic_buffer = OnPolicyCriticBufferFP(merged, state, case.agents)
    else:
        runner.critic_buffer = OnPolicyCriticBufferEP(merged, state)
    runner.value_normalizer = ValueNorm(1)
    return runner


def observe(
    runner: Any,
    rng: np.random.Generator,
    decided: tuple[Any, ...] | None = None,
    agents_die: bool = False,
    *,
    first: bool = False,
) -> None:
    """Insert one decision's synthetic outcome, or the first observation."""
    agents = runner.num_agents
    critic = runner.critic_buffer
    sizes = [buffer.shape[-1] for buffer in (runner.actor_buffer[0].obs, critic.share_obs)]
    obs, state = (rng.normal(size=(ENVS, agents, n)).astype(np.float32) for n in sizes)
    if runner.state_type == "EP":
        state[:] = state[:, :1]
    if first:
        for agent, buffer in enumerate(runner.actor_buffer):
            buffer.obs[0] = obs[:, agent]
        critic.share_obs[0] = state if runner.state_type == "FP" else state[:, 0]
        return

    assert decided is not None
    values, actions, log_probs, hidden, critic_hidden = decided
    rewards = rng.normal(size=(ENVS, agents, 1)).astype(np.float32)
    if runner.state_type == "EP":
        rewards[:] = rewards[:, :1]
    ended = rng.random(ENVS) < 0.2
    truncated = ended & (rng.random(ENVS) < 0.5)
    dones = np.repeat(ended[:, None], agents, axis=1)
    if agents_die:
        dones |= rng.random((ENVS, agents)) < 0.3
    infos = [[{"bad_transition": bool(cut)} for _ in range(agents)] for cut in truncated]
    outcome = (obs, state, rewards, dones, infos, [None] * ENVS)
    runner.insert((*outcome, values, actions, log_probs, hidden, critic_hidden))


def rollout(runner: Any) -> dict[str, Any]:
    """Copy the buffers as they are before an update."""
    actors = runner.actor_buffer
    critic = runner.critic_buffer
    is_recurrent = runner.algo_args["model"]["use_recurrent_policy"]
    return {
        "obs": [plain(buffer.obs) for buffer in actors],
        "actions": [plain(buffer.actions) for buffer in actors],
        "action_log_probs": [plain(buffer.action_log_probs) for buffer in actors],
        "active_masks": [plain(buffer.active_masks) for buffer in actors],
        "rnn_states": [plain(buffer.rnn_states) for buffer in actors] if is_recurrent else None,
        "rnn_states_critic": plain(critic.rnn_states_critic) if is_recurrent else None,
        "share_obs": plain(critic.share_obs),
        "rewards": plain(critic.rewards),
        "value_preds": plain(critic.value_preds),
        "critic_masks": plain(critic.masks),
        "bad_masks": plain(critic.bad_masks),
    }


def computed(runner: Any, case: Case, drawn: dict[str, Any]) -> dict[str, Any]:
    """Return upstream's returns, advantages, order of agents and factors for a rollout."""
    nothing = torch.full((case.steps, ENVS, 1), float("nan"))  # of an agent that was never alive
    is_sequential = case.algo != "mappo"
    in_order = not is_sequential or runner.fixed_order
    first = range(case.agents) if in_order else drawn["randperm"][0].tolist()
    return {
        "next_value": plain(runner.critic_buffer.value_preds[-1]),
        "returns": plain(runner.critic_buffer.returns),
        "advantages_norm": [drawn["advantages"].get(i, nothing) for i in range(case.agents)],
        "agent_order": list(first),
        "factor": [plain(b.factor) for b in runner.actor_buffer] if is_sequential else None,
    }


@contextmanager
def watching(runner: Any) -> Iterator[dict[str, Any]]:
    """Record permutations and normalised advantages inside the block."""
    drawn: dict[str, Any] = {"randperm": [], "advantages": {}}
    randperm = torch.randperm
    samplers = [name for name in dir(OnPolicyActorBuffer) if name.endswith("_generator_actor")]

    def draw(*args: Any, **kwargs: Any) -> Tensor:
        result = randperm(*args, **kwargs)
        drawn["randperm"].append(result.clone())
        return result

    def spying(sample: Any, agent: int) -> Any:
        def sampled(advantages: np.ndarray, *args: Any) -> Any:
            drawn["advantages"].setdefault(agent, plain(advantages))
            return sample(advantages, *args)

        return sampled

    for agent, buffer in enumerate(runner.actor_buffer):
        for name in samplers:
            setattr(buffer, name, spying(getattr(buffer, name), agent))
    torch.randperm = draw
    try:
        yield drawn
    finally:
        torch.randperm = randperm
        for buffer in runner.actor_buffer:
            for name in samplers:
                delattr(buffer, name)


def learner(runner: Any) -> dict[str, Any]:
    """Return weights, moments and the value normaliser as they are now."""
    actors = list(dict.fromkeys(runner.actor))
    return {
        "actor": [copied(actor.actor) for actor in actors],
        "critic": copied(runner.critic.critic),
        "value_norm": copied(runner.value_normalizer),
        "actor_optim": [moments(actor.actor_optimizer, actor.actor) for actor in actors],
        "critic_optim": moments(runner.critic.critic_optimizer, runner.critic.critic),
    }


def moments(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> dict[str, Any]:
    """Return Adam's step, rate and moments by parameter name."""
    states = {name: optimizer.state.get(p, {}) for name, p in module.named_parameters()}
    steps = {int(state["step"]) for state in states.values() if state}
    return {
        "lr": optimizer.param_groups[0]["lr"],
        "step": max(steps, default=0),
        "exp_avg": {name: s["exp_avg"].clone() for name, s in states.items() if s},
        "exp_avg_sq": {name: s["exp_avg_sq"].clone() for name, s in states.items() if s},
    }


def plain(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array)).to(torch.float32)


def main(folder: Path, names: list[str]) -> None:
    """Record the named cases, or every case."""
    torch.set_num_threads(1)
    for name in names or CASES:
        path = folder / f"{name}.pt.xz"
        recording_file.write(path, record(name))
        sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
