"""``mapush.make``: clients by their names, settings and mistakes."""

from __future__ import annotations

import sys

import pytest

import mapush
from harl_mapush.clients import HarlEnv
from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv


def test_without_a_client_it_is_our_own_environment() -> None:
    settings = {"task.object": "tblock", "device": "cpu"}
    env = mapush.make("go1push_mid", num_envs=2, seed=1, settings=settings)
    assert isinstance(env, MultiAgentEnv)
    assert env.settings["task"]["object"] == "tblock"
    assert env.num_envs == 2


def test_harls_environment_has_the_settings_that_were_given() -> None:
    env = mapush.make(
        client="harl", num_envs=2, seed=3, settings={"device": "cpu"}, team_reward="sum"
    )
    assert isinstance(env, HarlEnv)
    assert (env.n_threads, env.team_reward) == (2, "sum")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"client": "gymnasum"}, "client: unknown client 'gymnasum'"),
        ({"client": "hrl"}, "did you mean harl?"),
        ({"task": "go1push"}, "unknown .*go1push.*did you mean go1push_mid"),
        ({"settings": {"task.objct": "tblock"}}, "did you mean task.object"),
        ({"settings": {"objct": "tblock"}}, "did you mean object"),
        ({"num_envs": 2, "settings": {"env.num_envs": 3}}, "two spellings of one setting"),
        ({"num_envs": 0}, "num_envs: must be at least 1"),
        ({"team_reward": "sum"}, "team_reward: our own environment has no options"),
        ({"client": "gymnasium", "group": "all"}, "group: gymnasium has no such option"),
        ({"client": "gymnasium", "autoreset_mode": []}, "autoreset_mode: unknown value"),
        ({"client": "gymnasium", "output": {}}, "output: unknown value"),
        ({"client": "harl", "team_reward": []}, "team_reward: "),
        ({"client": "harl", "team": "sum"}, r"team: harl .*\(allowed: team_reward\)"),
        ({"settings": ["task.object"]}, "settings: must be a dictionary of dotted names"),
    ],
)
def test_a_mistake_is_an_error_with_what_to_say_instead(given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        mapush.make(**given)


def test_a_client_whose_library_is_not_installed_names_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "harl_mapush.clients.gymnasium_env", raising=False)
    with pytest.raises(ConfigError, match=r"pip install '\.\[gymnasium\]'"):
        mapush.make(client="gymnasium")


def test_a_team_comes_with_the_worlds_in_which_it_is_measured() -> None:
    env, team = mapush.load_team("pretrained:tblock", num_envs=2, settings={"device": "cpu"})
    obs, _ = env.reset()
    assert team(obs).shape == (2, 2, 3)
    assert env.settings["task"]["object"] == "tblock"
    assert env.settings["task"]["spawn"] == "separated"
    env.close()
    with pytest.raises(ConfigError, match="num_agents=3: checkpoint .* was trained with"):
        mapush.load_team("pretrained:tblock", settings={"env.num_agents": 3})
    with pytest.raises(ConfigError, match="settings: must be a dictionary of dotted names"):
        mapush.load_team("pretrained:tblock", settings=["task.object"])  # type: ignore[arg-type]
