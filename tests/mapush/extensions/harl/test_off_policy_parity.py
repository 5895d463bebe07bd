"""Upstream HARL's off-policy updates, recorded, and the same by our own algorithms under
``compat=harl``.
"""

from __future__ import annotations

import copy

import pytest
import torch

from harl_mapush.algorithms.off_policy import OffPolicy, _step
from harl_mapush.learning.off_policy import td
from harl_mapush.learning.off_policy.q_networks import TwinCritic
from tests.support import harl_off_policy
from tests.support.paths import DATA
from tests.support.rounding import FEW_STEPS

RECORDINGS = sorted((DATA / "harl_off_policy").glob("*.pt.xz"))
TOLERANCE = FEW_STEPS  # of weights near 1


def replayed(name: str, stage: int = 0) -> dict[str, float]:
    record = harl_off_policy.read(
        next(path for path in RECORDINGS if path.name.startswith(f"{name}."))
    )
    return harl_off_policy.replay(record, stage)


@pytest.mark.parametrize("name", [path.name.partition(".")[0] for path in RECORDINGS])
@pytest.mark.parametrize("stage", [0, 1])
def test_recorded_updates_agree(name: str, stage: int) -> None:
    assert {part: size for part, size in replayed(name, stage).items() if size > TOLERANCE} == {}


LIVE_CASES = [
    "hatd3_shared",
    "matd3_shared",
    "hatd3_settings_without_effect",
    "hasac_shared",
    "hasac_unmasked",
    "hasac_fp",
    "hasac_fp_value_norm",
    "hasac_fp_squares",
    "hasac_fp_unmasked",
]


@pytest.mark.parametrize("case", LIVE_CASES)
def test_shared_actors_and_states_of_each_agent_agree_with_an_installed_harl(case: str) -> None:
    pytest.importorskip("harl")
    from tests.support import record_off_policy  # it imports HARL

    assert list(record_off_policy.LIVE_CASES) == LIVE_CASES
    record = record_off_policy.record(case)
    for stage in (0, 1):
        differences = harl_off_policy.replay(record, stage)
        assert {part: size for part, size in differences.items() if size > TOLERANCE} == {}


def test_every_algorithm_of_upstreams_that_is_here_is_recorded_in_both_orders() -> None:
    records = [harl_off_policy.read(path) for path in RECORDINGS]
    assert {record["meta"]["algo"] for record in records} == {"hasac", "hatd3", "matd3"}
    for algo in ("hasac", "hatd3"):
        stages = [
            stage
            for record in records
            if record["meta"]["algo"] == algo
            for stage in record["stages"]
        ]
        assert {tuple(update["agent_order"]) for s in stages for update in s["updates"]} == {
            (0, 1),
            (1, 0),
        }


def _no_slope(mean, log_std, noise):
    actions, log_probs = td.squashed_sample(mean, log_std, noise)
    return actions, log_probs + 2.0 * mean.sum(-1)


_plain_target = td.td_target
_plain_forward = TwinCritic.forward


def _swapped(self, state, actions, *, only_first=False):
    values = _plain_forward(self, state, actions).flip(0)
    return values[:1] if only_first else values


_MISTAKES = {
    "log probability": (
        "hasac_2a",
        "harl_mapush.learning.off_policy.q_networks.squashed_sample",
        _no_slope,
    ),
    "discount": (
        "hatd3_2a",
        "harl_mapush.learning.off_policy.td.td_target",
        lambda r, d, v: _plain_target(r, d * 0.99, v),
    ),
    "Huber's corner": (
        "hasac_2a",
        "harl_mapush.learning.off_policy.td.huber",
        lambda error, delta: 0.5 * error**2,
    ),
    "targets follow faster": (
        "hatd3_2a",
        "harl_mapush.learning.off_policy.td.move_towards",
        lambda x, y, share: x.lerp_(y, 0.2),
    ),
    "clip of the noise": (
        "hatd3_2a",
        "mapush.extensions.harl.hatd3.clipped_noise",
        lambda noise, std, bound: noise * std,
    ),
    "temperature": (
        "hasac_2a",
        "harl_mapush.learning.off_policy.td.temperature_gradient",
        lambda x, *rest: -x.mean(),
    ),
    "the other critic": (
        "hatd3_2a",
        "harl_mapush.learning.off_policy.q_networks.TwinCritic.forward",
        _swapped,
    ),
}


@pytest.mark.parametrize("mistake", _MISTAKES)
def test_a_wrong_formula_is_noticed(mistake: str, monkeypatch) -> None:
    name, target, wrong = _MISTAKES[mistake]
    monkeypatch.setattr(target, wrong)
    assert max(max(replayed(name, stage).values()) for stage in (0, 1)) > 3 * TOLERANCE


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("hasac_2a", "use_policy_active_masks", False),
        ("hasac_2a", "n_step", 4),
        ("hasac_2a", "auto_alpha", False),
        ("hasac_2a", "use_valuenorm", False),
        ("matd3_2a", "n_step", 1),
    ],
)
def test_another_setting_is_noticed(name: str, key: str, value: int) -> None:
    path = next(path for path in RECORDINGS if path.name.startswith(f"{name}."))
    record = copy.deepcopy(harl_off_policy.read(path))
    record["config"]["train" if key == "use_valuenorm" else "algo"][key] = value
    if key == "use_valuenorm":
        for stage in record["stages"]:
            stage["pre"]["value_norm"] = stage["post"]["value_norm"] = None
    assert max(harl_off_policy.replay(record, 1).values()) > 3 * TOLERANCE


def _with_stale_actions(self, batch, order):
    """Update every actor against the others' actions from before any turn."""
    with torch.no_grad():
        before = [self.decide(i, batch.obs)[0] for i in range(self.num_agents)]
    log_probs = [None] * self.num_agents
    for agent in order:
        mine, log_probs[agent] = self.decide(agent, batch.obs)
        joint = torch.cat([*before[:agent], mine, *before[agent + 1 :]], dim=-1)
        loss = self.actor_loss(agent, self.critic(batch.state, joint), log_probs[agent], None)
        _step(self.optimizers[agent], loss, 0.0)
        if agent != order[-1]:
            self.decide(agent, batch.obs)  # for the noise alone
    return self.after_actors(log_probs, batch)


@pytest.mark.parametrize("name", ["hasac_2a_fixed_alpha", "hatd3_2a"])
def test_stale_actions_of_the_agents_before_are_noticed(name: str, monkeypatch) -> None:
    monkeypatch.setattr(OffPolicy, "_update_actors", _with_stale_actions)
    assert max(replayed(name, 1).values()) > 3 * TOLERANCE
