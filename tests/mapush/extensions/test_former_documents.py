"""Every command, import and line in the documents that this library grew from, typed as written.

The rows are data: ``tests/data/former_documents.yaml``.
"""

from __future__ import annotations

import re
import shlex
from types import SimpleNamespace
from typing import Any

import pytest

import mapush
from harl_mapush import experiment, test, train
from harl_mapush.clients import MAPushEnv
from harl_mapush.clients.flat_settings import resolve_settings
from mapush import cli
from mqe.config import ConfigError, load_yaml
from mqe.envs.utils import custom_cfg, make_mqe_env
from tests.harl_mapush.collectors.test_collectors import shown_health
from tests.support.paths import ROOT
from tests.support.pushing import weights_of

ROWS = load_yaml(ROOT / "tests" / "data" / "former_documents.yaml")


def value_of(cfg: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        cfg = getattr(cfg, name)
    return cfg


@pytest.mark.parametrize("line", ROWS["imports"])
def test_an_import_of_the_documents(line: str) -> None:
    if re.search("Logger|Runner", line):
        pytest.importorskip("harl")
    names: dict[str, Any] = {}
    exec(line, names)  # noqa: S102
    imported = line.rpartition(" import ")[2].split(", ")
    assert {name.split(".")[0] for name in imported} <= set(names)


@pytest.mark.parametrize("line", ROWS["train"])
def test_a_training_of_the_documents(line: str, monkeypatch, capsys) -> None:
    trained = []

    def run(cfg: Any, start: Any) -> int:
        trained.append(cfg)
        return 0

    monkeypatch.setattr(experiment, "run", run)
    expected = ROWS["train"][line]
    if expected == "error":
        assert train.main(shlex.split(line)) == 2
        assert "algorithm.name: unknown algorithm" in capsys.readouterr().err
        return
    assert train.main(["--preset", "smoke", *shlex.split(line)]) == 0
    for name, value in expected.items():
        if value is not None:
            assert value_of(trained[0], name) == value, name


@pytest.mark.parametrize("line", ROWS["refused"])
def test_a_flag_with_another_unit_or_name_is_answered(line: str, capsys) -> None:
    assert train.main(shlex.split(line)) == 2
    assert ROWS["refused"][line] in capsys.readouterr().err


@pytest.mark.parametrize("line", ROWS["test"])
def test_a_test_of_the_documents(line: str, capsys) -> None:
    assert test.main(shlex.split(line)) == 2
    assert re.search(r"checkpoint .*none.* does not exist", capsys.readouterr().err)


@pytest.mark.parametrize("line", ROWS["doctor"])
def test_a_doctor_of_the_documents(line: str, capsys) -> None:
    assert cli.main(["doctor", *line.split()]) == 2
    assert ROWS["doctor"][line] in capsys.readouterr().err


def test_the_lines_of_the_asynchronous_trainer() -> None:
    lines = "\n".join(shown_health())
    for pattern in ROWS["async_lines"]:
        assert re.search(f"^{pattern}", lines, flags=re.MULTILINE), pattern


@pytest.mark.parametrize("row", range(len(ROWS["keys"])))
def test_keys_of_the_flat_dictionary(row: int) -> None:
    settings, expected = ROWS["keys"][row]
    cfg = resolve_settings(settings)
    for name, value in expected.items():
        assert value_of(cfg, name) == value


def test_a_number_of_threads_beside_worlds_is_named(capsys) -> None:
    resolve_settings({"num_envs": 5, "n_threads": 7})
    assert "n_threads=7 has no effect beside num_envs=5" in capsys.readouterr().err


def test_statistics_in_deques_can_be_forgotten() -> None:
    pytest.importorskip("gymnasium")
    env = MAPushEnv({"n_threads": 1, "device": "cpu", "episode_length_s": 0.02})
    env.reset()
    env.step([[[0.0] * 3] * 2])
    deques = [getattr(env, name) for name in ROWS["deques"]]
    assert any(deques)
    env.reset_statistics()
    assert not any(deques)
    env.close()


def test_a_script_of_mqe_builds_its_worlds() -> None:
    args = SimpleNamespace(num_envs=2, sim_device="cpu", seed=1)
    env, cfg = make_mqe_env("go1push_mid", args, custom_cfg(args))
    assert (env.num_envs, cfg.sim.device) == (2, "cpu")
    env.close()


def test_published_rewards_are_20000_times_those_of_the_task_files() -> None:
    published = weights_of("published", "cuboid", {})
    of_files = weights_of("repo", "cuboid", {})
    common = [term for term, weight in published.items() if weight and of_files.get(term)]
    assert {"target", "reach", "approach", "push"} <= set(common)
    assert {published[term] / of_files[term] for term in common} == {20_000.0}


@pytest.mark.parametrize("name", ROWS["pages"])
def test_a_name_of_the_documents_is_on_a_page(name: str) -> None:
    page = ROOT / "docs" / "guides" / ROWS["pages"][name]
    assert name in page.read_text(encoding="utf-8")


def test_one_device_for_all_objects() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(2, 2)
    state = {"a": [torch.zeros(1)], "b": (layer, torch.optim.Adam(layer.parameters()))}
    assert mapush.check_devices(layer, state) == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"argument 0 \(Linear\) on cpu, argument 1 .* on meta"):
        mapush.check_devices(layer, torch.zeros(1, device="meta"))
    with pytest.raises(ConfigError, match="no tensor in these objects"):
        mapush.check_devices(3)
