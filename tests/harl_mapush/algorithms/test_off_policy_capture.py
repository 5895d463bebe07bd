"""Off-policy updates in captured graphs: equal numbers, and no synchronisation with the device."""

from __future__ import annotations

import pytest
import torch

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.learning.formula_sets import OFF_POLICY_FORMULAS
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.learning.update_graphs import Graphs
from mqe.vec_env import TimeStep
from tests.support.cuda_graph_recording import stand_in
from tests.support.off_policy_toys import LIVELY, NAMES, SMALL, go, make
from tests.support.toy import ToyEnv


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("hasac", {}),
        *(
            (
                "hasac",
                {"compat": compat, "auto_alpha": True, "use_value_norm": True},
            )
            for compat in OFF_POLICY_FORMULAS
        ),
        *((name, {}) for name in NAMES if name != "hasac"),
    ],
)
def test_replayed_updates_are_those_that_just_run(name, settings, monkeypatch):
    stand_in(monkeypatch)
    weights = []
    recorded = []
    for is_captured in (False, True):
        env = ToyEnv(8, **LIVELY)
        team, experience = make(name, env, NetworkCfg((8,)), **SMALL | settings)
        team.graphs._enabled = is_captured
        go(team, experience, env, 15)
        assert team.num_updates == 8  # four of them of actors with a delay, the last replayed
        weights.append(torch.cat([*team.weights.values(), *(target for target, _ in team.targets)]))
        recorded = [
            key
            for key, recorded_work in team.graphs._recorded.items()
            if recorded_work.graphed._recorded is not None
        ]
    assert torch.equal(*weights)
    kinds = {key[0] if isinstance(key, tuple) else key for key in recorded}
    assert {"sample", "update", "explore"} <= kinds


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_collecting_and_learning_never_wait_for_a_gpu(name):
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    env = ToyEnv(16, **LIVELY)
    entry = ALGORITHMS[name]
    team = entry.cls(entry.cfg(**SMALL), NetworkCfg((16,)), env.spec, device)
    experience = team.make_experience(1, 16)
    obs, state = env.reset()
    experience.start(obs.to(device), state.to(device))
    actions = torch.zeros(16, 2, 2)
    for k in range(24):
        step = env.step(actions)
        moved = TimeStep(*(x.to(device) for x in step[:-1]), info={})
        torch.cuda.set_sync_debug_mode("error" if k > 18 else "default")
        try:
            decision = team.act(moved.obs)
            experience.add(0, moved.obs, decision, moved)
            metrics = team.update(experience)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert all(torch.isfinite(value) for value in metrics.values())
    assert team.num_updates > 20


def test_a_host_that_asks_for_a_value_in_an_update_is_noticed(monkeypatch):
    stand_in(monkeypatch)
    graphs = Graphs(torch.device("cpu"), torch.Generator())
    graphs._enabled = True
    for _ in range(2):
        graphs("asks", lambda x: x * float(x), torch.ones(()))
    with pytest.raises(RuntimeError, match="the host asks"):
        graphs("asks", lambda x: x * float(x), torch.ones(()))
