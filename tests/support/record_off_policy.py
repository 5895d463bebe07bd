"""Record updates of upstream HARL's off-policy algorithms: ``python
tests/support/record_off_policy.py FOLDER``.

Upstream's actors, critics, buffers and ``train`` run unmodified over synthetic transitions, and the
recording holds their random draws.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from harl.algorithms.actors import ALGO_REGISTRY
from harl.algorithms.critics import CRITIC_REGISTRY
from harl.common.buffers.off_policy_buffer_ep import OffPolicyBufferEP
from harl.common.buffers.off_policy_buffer_fp import OffPolicyBufferFP
from harl.common.valuenorm import ValueNorm
from harl.runners.off_policy_ha_runner import OffPolicyHARunner
from harl.runners.off_policy_ma_runner import OffPolicyMARunner
from torch import Tensor

from tests.support import recording_file
from tests.support.harl_off_policy import FORMAT

AGENTS = 2
ENVS = 4
ROWS = 30
OBS = 5
STATE = 7
ACTION = 2
# updates a stage
NUM_STAGES = 2
NUM_UPDATES = 2
TRAIN = {"n_rollout_threads": ENVS, "use_proper_time_limits": True, "use_valuenorm": False}
MODEL = {  # large rates: what one agent changes must show in what the next one learns
    "hidden_sizes": [12, 8],
    "activation_func": "relu",
    "final_activation_func": "tanh",
    "lr": 0.03,
    "critic_lr": 0.01,
}
ALGO = {
    "gamma": 0.97,
    "buffer_size": ENVS * ROWS,
    "batch_size": 24,
    "polyak": 0.1,
    "n_step": 1,
    "share_param": False,
    "fixed_order": False,
}
SOFT = {
    "auto_alpha": True,
    "alpha": 0.001,
    "alpha_lr": 3e-4,
    "use_huber_loss": True,
    "huber_delta": 1.0,
}
SOFT |= {"use_policy_active_masks": True, "n_step": 5}
NOISY = {"policy_noise": 0.2, "noise_clip": 0.3, "policy_freq": 2, "expl_noise": 0.1, "n_step": 3}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "hasac_2a": ("hasac", {"use_valuenorm": True}, SOFT),
    "hasac_2a_fixed_alpha": (
        "hasac",
        {},
        SOFT
        | {
            "auto_alpha": False,
            "alpha": 0.05,
            "use_huber_loss": False,
            "use_policy_active_masks": False,
        },
    ),
    "hatd3_2a": ("hatd3", {}, NOISY),
    "matd3_2a": ("matd3", {}, NOISY | {"policy_freq": 1}),
}
SHARED = {"share_param": True}
PLAIN = {"use_huber_loss": False}
UNMASKED = {"use_policy_active_masks": False}
# cases that are compared with an installed HARL as well
LIVE_CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "hatd3_shared": ("hatd3", {}, NOISY | SHARED, "EP"),
    "matd3_shared": ("matd3", {}, NOISY | SHARED, "EP"),
    "hatd3_settings_without_effect": (
        "hatd3",
        {"use_valuenorm": True},
        NOISY | {"use_huber_loss": True, "huber_delta": 0.1},
        "EP",
    ),
    "hasac_shared": ("hasac", {}, SOFT | SHARED, "EP"),
    "hasac_unmasked": ("hasac", {"use_valuenorm": True}, SOFT | UNMASKED, "EP"),
    "hasac_fp": ("hasac", {}, SOFT, "FP"),
    "hasac_fp_value_norm": ("hasac", {"use_valuenorm": True}, SOFT, "FP"),
    "hasac_fp_squares": ("hasac", {}, SOFT | PLAIN, "FP"),
    "hasac_fp_unmasked": ("hasac", {}, SOFT | UNMASKED, "FP"),
}
FILES = (*CASES, "hatd3_shared", "hasac_fp")
# In a small one of HATD3 it does not show that agents act beside what the others did before.
LARGE_FILES = ("hatd3_2a",)
SMALL_MODEL = {"hidden_sizes": [3, 2]}
SMALL_ROWS = 7


def record(case: str, *, small: bool = False) -> dict[str, Any]:
    """Run one case, with ``small`` networks and buffers."""
    if case in LIVE_CASES:
        algo, train, settings, state_type = LIVE_CASES[case]
    else:
        algo, train, settings = CASES[case]
        state_type = "EP"
    config = {"train": TRAIN | train, "model": dict(MODEL), "algo": ALGO | settings}
    if small:
        config["model"] |= SMALL_MODEL
        config["algo"] |= {"buffer_size": ENVS * SMALL_ROWS, "batch_size": 12}
    torch.manual_seed(1)
    np.random.seed(7)
    runner = make_runner(algo, config, state_type)
    fill(runner.buffer, np.random.default_rng(2), state_type)
    stages = []
    for _ in range(NUM_STAGES):
        stage: dict[str, Any] = {"pre": learner(runner), "updates": []}
        for _ in range(NUM_UPDATES):
            drawn: dict[str, list[Tensor]] = {"noise": [], "randperm": [], "agent_order": []}
            with watching(runner, drawn) as batches:
                runner.train()
            if drawn["agent_order"]:
                order = [int(i) for i in drawn["agent_order"][0]]
            else:
                order = list(range(AGENTS))
            stage["updates"].append(
                {
                    "noise": drawn["noise"],
                    "agent_order": order,
                    "index": batches[0]["index"],
                    "batch": batches[0],
                }
            )
        stage["post"] = learner(runner)
        stages.append(stage)
    buffer = runner.buffer
    names = ("share_obs", "next_share_obs", "rewards", "dones", "terms")
    arrays = {name: plain(getattr(buffer, name)) for name in names}
    lists = ("obs", "next_obs", "actions", "valid_transitions")
    arrays |= {name: [plain(x) for x in getattr(buffer, name)] for name in lists}
    return {
        "format": FORMAT,
        "meta": {
            "case": case,
            "algo": algo,
            "package": "harl-aht 0.1.0",
            "torch": str(torch.__version__),
            "seed": 1,
        },
        "config": config,
        "env": {
            "n_agents": AGENTS,
            "N": ENVS,
            "obs_dim": OBS,
            "share_obs_dim": STATE,
            "act_dim": ACTION,
            "state_type": state_type,
        },
        "buffer": arrays | {"idx": buffer.idx, "cur_size": buffer.cur_size},
        "stages": stages,
    }


def make_runner(algo: str, config: dict[str, Any], state_type: str) -> Any:
    """Build the input for upstream's ``train``, without environments and folders."""
    kind = OffPolicyMARunner if algo.startswith("ma") else OffPolicyHARunner
    runner = object.__new__(kind)
    merged = {**config["train"], **config["model"], **config["algo"]}
    obs, state, action = (Box(-1.0, 1.0, (size,), np.float32) for size in (OBS, STATE, ACTION))
    runner.args = {"algo": algo}
    runner.algo_args = config
    runner.device = torch.device("cpu")
    runner.num_agents = AGENTS
    runner.state_type = state_type
    runner.total_it = 0
    runner.fixed_order = merged["fixed_order"]
    runner.policy_freq = merged.get("policy_freq", 1)
    if merged["share_param"]:
        runner.actor = [ALGO_REGISTRY[algo](merged, obs, action)] * AGENTS
    else:
        runner.actor = [ALGO_REGISTRY[algo](merged, obs, action) for _ in range(AGENTS)]
    runner.critic = CRITIC_REGISTRY[algo](merged, state, [action] * AGENTS, AGENTS, state_type)
    buffer = OffPolicyBufferFP if state_type == "FP" else OffPolicyBufferEP
    runner.buffer = buffer(merged, state, AGENTS, [obs] * AGENTS, [action] * AGENTS)
    runner.value_normalizer = ValueNorm(1) if merged["use_valuenorm"] else None
    runner.alpha = [merged.get("alpha")] * AGENTS
    if merged.get("auto_alpha"):  # as upstream's base runner makes them
        runner.target_entropy = [-float(ACTION)] * AGENTS
        runner.log_alpha = [torch.zeros(1, requires_grad=True) for _ in range(AGENTS)]
        runner.alpha_optimizer = [
            torch.optim.Adam([x], lr=merged["alpha_lr"]) for x in runner.log_alpha
        ]
        runner.alpha = [torch.exp(x.detach()) for x in runner.log_alpha]
    return runner


def fill(
    buffer: OffPolicyBufferEP | OffPolicyBufferFP, rng: np.random.Generator, state_type: str
) -> None:
    """Insert more rows than fit, with terminations, time-outs and dead agents.

    FP agents also end one by one.
    """

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    views = (AGENTS,) if state_type == "FP" else ()
    for _ in range(ROWS + 11):
        done = rng.random((ENVS, 1)) < 0.15
        term = done & (rng.random((ENVS, 1)) < 0.5)
        valid = [(rng.random((ENVS, 1)) < 0.9).astype(np.float32) for _ in range(AGENTS)]
        dones, terms = (
            np.broadcast_to(flag.reshape(ENVS, *[1 for _ in views], 1), (ENVS, *views, 1))
            for flag in (done, term)
        )
        if views:  # agents die alone
            alone = ~dones & (rng.random((ENVS, *views, 1)) < 0.15)
            dones = dones | alone
            terms = terms | alone
        obs, following = ([normal(ENVS, OBS) for _ in range(AGENTS)] for _ in range(2))
        actions = [np.tanh(normal(ENVS, ACTION)) for _ in range(AGENTS)]
        buffer.insert(
            (
                normal(ENVS, *views, STATE),
                obs,
                actions,
                None,
                normal(ENVS, *views, 1),
                dones,
                valid,
                terms,
                normal(ENVS, *views, STATE),
                following,
                None,
            )
        )


@contextmanager
def watching(runner: Any, drawn: dict[str, list[Any]]) -> Iterator[list[dict[str, Any]]]:
    """Record random draws and buffer samples inside the block."""
    distribution = sys.modules["torch.distributions.normal"]
    spots = [
        (distribution, "_standard_normal", "noise"),
        (torch, "randn_like", "noise"),
        (torch, "randperm", "randperm"),
        (np.random, "permutation", "agent_order"),
    ]
    plain_functions = [getattr(where, name) for where, name, _ in spots]
    plain_sample = runner.buffer.sample
    batches = []

    def spying(function: Any, kind: str) -> Any:
        def draw(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            drawn[kind].append(result.clone() if isinstance(result, Tensor) else result.copy())
            return result

        return draw

    def sample() -> Any:
        data = plain_sample()
        batch = SimpleNamespace(
            reward=data[4], term=data[7], gamma=data[11], next_share_obs=data[8]
        )
        index = drawn["randperm"][-1][: runner.buffer.batch_size]
        batches.append(
            {name: plain(value) for name, value in vars(batch).items()} | {"index": index.clone()}
        )
        return data

    for (where, name, kind), function in zip(spots, plain_functions, strict=True):
        setattr(where, name, spying(function, kind))
    runner.buffer.sample = sample
    try:
        yield batches
    finally:
        runner.buffer.sample = plain_sample
        for (where, name, _), function in zip(spots, plain_functions, strict=True):
            setattr(where, name, function)


def learner(runner: Any) -> dict[str, Any]:
    """Return weights, targets, moments, temperatures and the value normaliser as they are now."""
    critic = runner.critic
    has_targets = hasattr(runner.actor[0], "target_actor")
    state: dict[str, Any] = {
        "actor": [copied(actor.actor) for actor in runner.actor],
        "actor_optim": [moments(actor.actor_optimizer, [actor.actor]) for actor in runner.actor],
        "critic": [copied(critic.critic), copied(critic.critic2)],
        "target_critic": [copied(critic.target_critic), copied(critic.target_critic2)],
        "critic_optim": moments(critic.critic_optimizer, [critic.critic, critic.critic2]),
        "target_actor": [copied(a.target_actor) for a in runner.actor] if has_targets else None,
        "value_norm": None if runner.value_normalizer is None else copied(runner.value_normalizer),
        "log_alpha": None,
        "alpha_optim": None,
    }
    if hasattr(runner, "log_alpha"):
        state["log_alpha"] = torch.cat(
            [*(x.detach() for x in runner.log_alpha), critic.log_alpha.detach()]
        )
        every = [*runner.alpha_optimizer, critic.alpha_optimizer]
        state["alpha_optim"] = {
            key: torch.cat(
                [
                    next(iter(o.state.values()))[key].reshape(1) if o.state else torch.zeros(1)
                    for o in every
                ]
            )
            for key in ("exp_avg", "exp_avg_sq")
        }
    return state


def copied(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def moments(optimizer: torch.optim.Optimizer, modules: list[torch.nn.Module]) -> dict[str, Any]:
    """Return Adam's step, rate and moments, parameter by parameter in the modules' order."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    states = [optimizer.state.get(parameter, {}) for parameter in parameters]
    return {
        "lr": optimizer.param_groups[0]["lr"],
        "step": int(states[0]["step"]) if states[0] else 0,
        "exp_avg": [state["exp_avg"].clone() for state in states if state],
        "exp_avg_sq": [state["exp_avg_sq"].clone() for state in states if state],
    }


def plain(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array)).to(torch.float32)


def main(folder: Path) -> None:
    """Record every case."""
    torch.set_num_threads(1)
    for case in FILES:
        path = folder / f"{case}.pt.xz"
        recording_file.write(path, record(case, small=case not in LARGE_FILES))
        sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
