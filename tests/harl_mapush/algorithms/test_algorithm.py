"""The contract of algorithms: every algorithm trains, resumes, is planned, checked, saved and
evaluated.
"""

from __future__ import annotations

import dataclasses
import inspect
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from harl_mapush import config, experiment, train
from harl_mapush import test as evaluate
from harl_mapush.algorithms.algorithm import Algorithm, Experience
from harl_mapush.algorithms.entries import ALGORITHMS, AlgorithmEntry, make_algorithm
from harl_mapush.config import RunnerCfg
from harl_mapush.learning.settings import NetworkCfg, OnPolicyCfg
from harl_mapush.runner import Runner
from harl_mapush.runs import checkpoint
from harl_mapush.start import Start
from mqe import host_memory
from mqe.config import ConfigError
from mqe.vec_env import TeamSpec
from tests.support.paths import ROOT
from tests.support.replaying import Replaying, ReplayingCfg
from tests.support.toy import ToyEnv
from tests.support.trials import for_trial

OWN = "replaying"  # a member of the tests' own, with a replay
EXAMPLES = {"haspo": "own_algorithm.py", "latent_hasac": "latent_hasac.py"}
NAMES = [*ALGORITHMS, OWN, *EXAMPLES]


def example(name: str) -> AlgorithmEntry:
    """Return the algorithm that an example registers, and unregister it afterwards."""
    runpy.run_path(str(ROOT / "examples" / EXAMPLES[name]))
    return ALGORITHMS.pop(name)


def members(contract: type) -> list[str]:
    return [name for name in vars(contract) if not name.startswith("_")]


class Through:
    """A proxy with access to a contract's members only."""

    def __init__(self, whole: Any, contract: type) -> None:
        self._whole = whole
        self._members = members(contract)

    def __getattr__(self, name: str) -> Any:
        if name not in self._members:
            raise AssertionError(f"{name} is used, which is not in the contract")
        return getattr(self._whole, name)


class ThroughAlgorithm(Through):
    """An algorithm, and its experience, seen through their contracts."""

    def __init__(self, whole: Any) -> None:
        super().__init__(whole, Algorithm)

    def make_experience(self, num_steps: int, num_envs: int) -> Any:
        return Through(self._whole.make_experience(num_steps, num_envs), Experience)

    def update(self, experience: Any, progress: float = 0.0) -> dict[str, torch.Tensor]:
        return self._whole.update(experience._whole, progress)


@pytest.fixture(autouse=True)
def contracts_alone(monkeypatch) -> None:
    monkeypatch.setitem(ALGORITHMS, OWN, AlgorithmEntry(ReplayingCfg, Replaying))
    for name in EXAMPLES:
        monkeypatch.setitem(ALGORITHMS, name, example(name))
    for name, entry in list(ALGORITHMS.items()):
        narrow = entry._replace(cls=lambda *args, cls=entry.cls: ThroughAlgorithm(cls(*args)))
        monkeypatch.setitem(ALGORITHMS, name, narrow)


def make(name: str, num_iterations: int = 4, **settings: Any) -> Runner:
    torch.manual_seed(0)
    env = ToyEnv(8, death_rate=0.05, failure_rate=0.02)
    plain = ALGORITHMS[name].cfg()
    settings |= {"num_epochs": 1} if isinstance(plain, OnPolicyCfg) else {}
    cfg = for_trial(dataclasses.replace(plain, **settings), 80)  # type: ignore[call-arg]
    algorithm = make_algorithm(cfg, NetworkCfg((8,)), env.spec, "cpu", 3)
    return Runner(env, algorithm, RunnerCfg(3, num_iterations * 160, 10))


def test_the_contract_has_at_most_eight_members() -> None:
    assert len(members(Algorithm)) <= 8
    assert len(members(Experience)) <= 8


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_has_the_contracts_members_and_no_other_parameters(name: str) -> None:
    algorithm = make(name).algorithm._whole  # type: ignore[attr-defined]
    for member in members(Algorithm):
        expected = inspect.getattr_static(Algorithm, member)
        if not isinstance(expected, property):
            ours = inspect.signature(getattr(type(algorithm), member))
            assert list(ours.parameters) == list(inspect.signature(expected).parameters), member
    assert [key for key in algorithm.networks if key.startswith("actor_agent")] == [
        "actor_agent0",
        "actor_agent1",
    ]
    assert all(flat.dim() == 1 for flat in algorithm.weights.values())


@pytest.mark.usefixtures("few_conjugate_steps")
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_resumes_as_if_it_had_never_stopped(name: str, tmp_path: Path) -> None:
    through = make(name, 2)
    stopped = make(name, 2)
    start = {key: flat.clone() for key, flat in stopped.algorithm.weights.items()}
    through.learn()
    stopped.progress.num_iterations = 1
    stopped.learn()
    assert not any(torch.equal(start[key], flat) for key, flat in stopped.algorithm.weights.items())
    torch.save(stopped.state_dict(), tmp_path / "state.pt")
    resumed = make(name, 2)
    torch.rand(5)  # whatever torch's own generator does
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    resumed.learn()
    before = through.algorithm.weights
    after = resumed.algorithm.weights
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    ("name", "setting"), [("happo", "env.num_envs=64"), ("hasac", "algorithm.buffer_size=")]
)
def test_storage_that_does_not_fit_names_its_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, setting: str
) -> None:
    team = make_algorithm(ALGORITHMS[name].cfg(), NetworkCfg((8,)), ToyEnv(64).spec, "cpu", 3)
    monkeypatch.setattr(host_memory, "host_memory", lambda: 1000)
    with pytest.raises(ConfigError, match=f"{setting}.* takes .* GiB, but cpu has"):
        team.make_experience(16, 64)


def test_a_replay_that_is_not_saved_starts_empty_and_learning_resumes() -> None:
    first = make(OWN, saves_replay=False)
    first.progress.num_iterations = 2
    first.learn()
    state = first.state_dict()
    assert state["storage"] == {}
    resumed = make(OWN, saves_replay=False)
    resumed.load_state_dict(state)
    resumed.learn()
    assert resumed.experience._whole.count == 20  # type: ignore[attr-defined]
    assert resumed.progress.iteration == 4


def test_nothing_is_learned_during_a_warm_up() -> None:
    runner = make(OWN)
    runner.algorithm._whole.cfg = dataclasses.replace(ReplayingCfg(), warmup=15)  # type: ignore[attr-defined]
    before = {key: flat.clone() for key, flat in runner.algorithm.weights.items()}
    runner.progress.num_iterations = 1
    runner.learn()
    assert all(torch.equal(before[key], flat) for key, flat in runner.algorithm.weights.items())
    runner.progress.num_iterations = 2
    runner.learn()
    assert not any(torch.equal(before[key], flat) for key, flat in runner.algorithm.weights.items())


@pytest.mark.parametrize("name", NAMES)
def test_every_trained_team_acts_by_its_actors_from_the_first_decision_on(name: str) -> None:
    env = ToyEnv(256)
    spec = env.spec._replace(is_trained=True)
    team = make_algorithm(ALGORITHMS[name].cfg(), NetworkCfg((8,)), spec, "cpu", 3)
    for key, network in team.networks.items():  # which command 0.9 or so, whatever they see
        layers = [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)]
        for layer in layers if key.startswith("actor_agent") else []:
            torch.nn.init.zeros_(layer.weight)
            is_spread = layer is getattr(network, "log_std_layer", None)
            torch.nn.init.constant_(layer.bias, -6.0 if is_spread else 1.5)
    obs = torch.zeros(256, 2, 3)
    assert team.act(obs).actions.mean().item() > 0.7


# Others give the program the same kind of experience.
@pytest.mark.parametrize("name", ["happo", "hasac", "replaying"])
def test_every_kind_of_algorithm_trains_through_the_program(name: str, tmp_path: Path) -> None:
    over: dict[str, Any] = {
        "algorithm": {"name": name},
        "network": {"hidden_sizes": [8]},
        "sim": {"device": "cpu"},
        "env": {"num_envs": 2},
        "runner": {"num_env_steps": 1, "num_steps": 4},
        "logger": {"out_dir": str(tmp_path / "run")},
    }
    cfg, _ = config.resolve({}, over)
    cfg = dataclasses.replace(cfg, algorithm=for_trial(cfg.algorithm, 8))
    assert experiment.run(cfg, Start.anew(cfg)) == 0
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1


def test_an_algorithm_from_outside_trains_resumes_starts_from_another_run_and_is_evaluated(
    gait, tmp_path: Path, monkeypatch
) -> None:
    trained = []

    def build(
        cfg: ReplayingCfg, network: NetworkCfg, spec: TeamSpec, *others: Any
    ) -> ThroughAlgorithm:
        trained.append(spec.is_trained)
        return ThroughAlgorithm(Replaying(cfg, network, spec, *others))

    monkeypatch.setitem(ALGORITHMS, OWN, AlgorithmEntry(ReplayingCfg, build))  # type: ignore[arg-type]
    run = tmp_path / "run"
    on = tmp_path / "on"
    task = (
        "--set",
        f"task.gait={gait}",
        "--set",
        "task.decision_period=2",
        "--set",
        "network.hidden_sizes=[8]",
    )
    size = ("--num_envs", "4", "--set", "runner.num_steps=8", "--num_env_steps", "128")
    assert train.main(["--algo", OWN, *size, *task, "--out", str(run)]) == 0
    files = {path.name for path in checkpoint.resolve(str(run)).iterdir()}
    assert {"actor_agent0.pt", "actor_agent1.pt", "critic_agent.pt", "training_state.pt"} <= files
    assert train.main(["--resume", str(run), "--num_env_steps", "192"]) == 0
    assert trained
    assert not any(trained)
    start = ["--algo", OWN, *size, *task, "--init_from", str(run), "--out", str(on)]
    for argv in (start, ["--resume", str(on), "--num_env_steps", "192"]):
        trained.clear()
        assert train.main(argv) == 0
        assert trained.count(True) == 1  # the one that learns
    short = ("--set", "task.episode_length_s=0.2", "--num_envs", "2")
    assert evaluate.main(["--checkpoint", str(run), "--mode", "calculator", *short]) == 0
