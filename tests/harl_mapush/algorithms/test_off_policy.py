"""The off-policy algorithms learn, with the right order and the right transitions."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import pytest
import torch

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.learning.collected import Decision
from harl_mapush.learning.formula_sets import OFF_POLICY_FORMULAS
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.runs import checkpoint, init_from
from tests.support.means import mean_actions
from tests.support.off_policy_toys import APART, LIVELY, NAMES, SMALL, go, make, returns_of_toy
from tests.support.toy import ToyEnv
from tests.support.trials import for_trial


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("compat", OFF_POLICY_FORMULAS)
@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_every_off_policy_algorithm_updates(name, compat, state_type):
    env = ToyEnv(8, 3, state_type, **LIVELY)
    settings = SMALL | {"compat": compat}
    network = NetworkCfg((16,), use_layer_norm=compat == "mapush")
    team, experience = make(name, env, network, **settings)
    before = {key: flat.clone() for key, flat in team.weights.items()}
    _, metrics = go(team, experience, env, 10)
    assert team.num_updates == 3
    assert {"critic/value_loss", "critic/value"} <= set(metrics)
    assert all(torch.isfinite(value) and value.dim() == 0 for value in metrics.values())
    assert [key for key, flat in team.weights.items() if torch.equal(flat, before[key])] == []


@pytest.mark.slow
def test_hasac_learns_the_toy():
    at_random, learned = returns_of_toy("hasac", 6e-3, 0.1, 1 / 32, 160)
    assert at_random < 0.0
    assert learned > 0.5  # 1 is standing on the spot


def test_nothing_is_learned_before_the_warm_up_and_then_as_often_as_the_ratio_says():
    env = ToyEnv(8)
    team, experience = make("hasac", env, **SMALL | {"update_ratio": 0.1875})
    go(team, experience, env, 7)
    assert team.num_updates == 0
    go(team, experience, env, 5)  # 40 transitions, 7.5 updates
    assert team.num_updates == 7
    assert team.num_owed == pytest.approx(0.5)


def test_actions_are_random_before_the_first_update():
    env = ToyEnv(8)
    team, experience = make("hasac", env, **SMALL)
    assert not torch.equal(team.act(env.seen).actions, team.act(env.seen).actions)  # type: ignore[attr-defined]


def test_a_shared_actor_decides_for_all_agents_at_once_as_for_one_after_another():
    env = ToyEnv(8, 3)
    team, _ = make("hasac", env, **SMALL | {"share_param": True})
    start = team.generator.get_state()
    together = team.decide_all(env.seen)  # type: ignore[attr-defined]
    team.generator.set_state(start)
    for agent, (actions, log_probs) in enumerate(zip(*together, strict=True)):
        agent_actions, own_log_probs = team.decide(agent, env.seen)  # type: ignore[attr-defined]
        torch.testing.assert_close(actions, agent_actions)
        torch.testing.assert_close(log_probs, own_log_probs)


def test_the_last_state_of_an_episode_is_stored_and_not_the_first_of_the_next():
    env = ToyEnv(32)
    team, experience = make("hasac", env, **SMALL | {"buffer_size": 32 * 20})
    steps = []
    plain = env.step
    env.step = lambda actions: steps.append(plain(actions)) or steps[-1]  # type: ignore
    go(team, experience, env, 3)
    k, world = next(
        (k, n) for k, step in enumerate(steps) for n in step.truncated.nonzero().flatten().tolist()
    )
    batch = experience.replay.look_up(torch.tensor([32 * k + world]))
    assert torch.equal(batch.next_obs[0], steps[k].final_obs[world])
    assert not torch.equal(batch.next_obs[0], steps[k].obs[world])
    assert batch.discount.item() == pytest.approx(team.cfg.gamma)


def test_the_dead_are_inactive_until_their_episode_ends():
    env = ToyEnv(8, death_rate=0.2)
    _, experience = make("hasac", env, **SMALL)
    dead = env.dead.clone()
    num_ends = 0
    decision = Decision(torch.zeros(8, 2, 2), None, None)
    for k in range(20):
        step = env.step(decision.actions)
        experience.add(0, step.obs, decision, step)
        active = experience.replay.look_up(torch.arange(8 * k, 8 * (k + 1))).active
        assert torch.equal(active, (~dead).float())
        dead = env.dead.clone()
        num_ends += int(step.terminated.all(dim=1).sum())
    assert num_ends > 0


def test_broken_steps_change_nothing_that_is_learned():
    outcomes = []
    for junk in (0.0, 1e3):
        env = ToyEnv(16, failure_rate=0.2)
        team, experience = make("hasac", env, NetworkCfg((8,)), **SMALL)
        plain = env.step

        def poisoned(actions, plain=plain, junk=junk):
            step = plain(actions)
            broken = ~step.valid.view(-1, 1)
            return step._replace(reward=step.reward.masked_fill(broken, junk))

        env.step = poisoned  # type: ignore[method-assign]
        go(team, experience, env, 12)
        assert int((experience.replay.flags & 4 == 0).sum()) > 0
        outcomes.append(torch.cat(list(team.weights.values())))
    assert torch.equal(*outcomes)


def test_agents_take_turns_in_orders_that_differ():
    env = ToyEnv(8, 3)
    team, _ = make("hasac", env, **SMALL)
    orders = {team.draw_order() for _ in range(60)}
    assert len(orders) == 6
    assert {make("hasac", env, **SMALL | {"fixed_order": True})[0].draw_order()} == {(0, 1, 2)}
    assert {make("masac", env, **SMALL)[0].draw_order()} == {(0, 1, 2)}


def test_a_shared_actor_at_once_climbs_the_value_of_all_new_actions():
    env = ToyEnv(8, 3)
    team, experience = make("hasac", env, **SMALL | {"share_param": True, "all_at_once": True})
    go(team, experience, env, 14)
    (batch,) = team.draw(experience.replay, 1)
    start = team.generator.get_state()
    actions, log_probs = team.decide_all(batch.obs)
    value = team.critic(batch.state, torch.cat(actions, dim=-1)).amin(0).mean()
    entropy = -sum(a * x.mean() for a, x in zip(team.alpha, log_probs, strict=True))  # type: ignore
    parameters = team.optimizers[0].parameters
    expected = torch.autograd.grad(-(value + entropy), parameters)
    team.generator.set_state(start)
    team._update_actors(batch, team.draw_order())
    gradient = torch.cat([part.flatten() for part in expected])
    torch.testing.assert_close(team.optimizers[0].grad[: len(gradient)], gradient)


def test_sharing_is_a_switch():
    env = ToyEnv(8)
    assert len(make("masac", env)[0].optimizers) == 1
    assert len(make("masac", env, share_param=False)[0].optimizers) == 2
    shared = make("hasac", env, share_param=True)[0]
    assert shared.actors[0] is shared.actors[1]
    with pytest.raises(ValueError, match="share_param"):
        make("masac", ToyEnv(8, 2, obs_sizes=(3, 2)))


def test_unequal_agents_are_a_team():
    env = ToyEnv(8, 2, obs_sizes=(3, 2), action_sizes=(2, 1))
    for name in APART:
        team, experience = make(name, env, **SMALL)
        go(team, experience, env, 12)
        # The action that agent 1 has not.
        assert float(experience.replay.here[:, :, -3].abs().max()) == 0.0


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("name", APART)
def test_a_resumed_run_equals_one_that_never_stopped_where_the_replay_is_saved(
    name, is_saved, tmp_path
):
    def fresh():
        env = ToyEnv(8, **LIVELY)
        return (
            env,
            *make(name, env, NetworkCfg((8,)), **SMALL | {"save_replay": is_saved}),
        )

    env, team, experience = fresh()
    go(team, experience, env, 16)
    torch.save(
        {"team": team.state_dict(), "seen": experience.state_dict(), "env": env.state_dict()},
        tmp_path / "x",
    )
    go(team, experience, env, 12)

    def resumed():
        torch.rand(5)  # whatever torch's own generator does
        again, other, replay = fresh()
        state = torch.load(tmp_path / "x", weights_only=True)
        other.load_state_dict(state["team"])
        replay.load_state_dict(state["seen"])
        obs, critic_state = again.load_state_dict(state["env"])
        replay.start(obs, critic_state)
        again.seen = obs
        go(other, replay, again, 12)
        return torch.cat(
            [*other.weights.values(), *(target for target, _ in other.targets)]
        ), other.num_updates

    weights, num_updates = resumed()
    expected = torch.cat([*team.weights.values(), *(target for target, _ in team.targets)])
    assert torch.equal(weights, expected) == is_saved
    assert (num_updates == team.num_updates) == is_saved  # else it waits for a new warm-up
    assert num_updates > 10
    assert torch.equal(resumed()[0], weights)


@pytest.mark.parametrize(
    ("settings", "network", "said"),
    [
        ({}, {"use_recurrent_policy": True}, "use_recurrent_policy=false"),
        ({"team_reward": "own"}, {}, "state_type=FP"),
        ({"warmup": 300, "buffer_size": 200}, {}, "must fit into buffer_size"),
        ({"all_at_once": True}, {}, "share_param=true"),
        (
            {"symmetries": ("mirror",)},
            {},
            "this task defines no image of observations and states for mirror",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, network, said):
    with pytest.raises(ValueError, match=said):
        make("hasac", ToyEnv(4), NetworkCfg((8,), **network), **settings)


def test_a_trial_moves_every_network_at_once():
    for name in NAMES:
        env = ToyEnv(4)
        entry = ALGORITHMS[name]
        cfg = for_trial(entry.cfg(), 4)
        changed = {key: value for key, value in vars(cfg).items() if key != "name"}
        team, experience = make(name, env, **changed)
        before = {key: flat.clone() for key, flat in team.weights.items()}
        go(team, experience, env, 1)
        assert not [key for key, flat in team.weights.items() if torch.equal(flat, before[key])]


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("is_trained", [False, True])
def test_a_team_acts_at_random_before_its_first_update_unless_it_is_trained(name, is_trained):
    env = ToyEnv(256, 2)
    team, experience = make(name, env, is_trained=is_trained, **SMALL)
    for actor in team.unique_actors:  # which command 0.9 or so, whatever they see
        for layer in (module for module in actor.modules() if isinstance(module, torch.nn.Linear)):
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.constant_(
                layer.bias, -6.0 if layer is getattr(actor, "log_std_layer", None) else 1.5
            )
    obs = torch.zeros(256, 2, 3)
    means = team.act(obs).actions.mean(), mean_actions(team, obs)[0].mean()
    assert means[1] > 0.7
    if is_trained:
        torch.testing.assert_close(*means, rtol=0, atol=0.15)
    else:
        assert means[0].abs() < 0.1
    assert team.num_updates == 0


@pytest.mark.parametrize("name", APART)
def test_critics_and_their_targets_learn_before_the_actors(name) -> None:
    env = ToyEnv(8, 2)
    team, experience = make(name, env, **SMALL | {"critic_warmup": 7, "policy_delay": 1})
    before = {key: flat.clone() for key, flat in team.weights.items()}
    target = team.target_moves[0][0]  # the critics'
    target_before = target.clone()
    go(team, experience, env, 14)
    assert team.num_updates == 7
    moved = {key for key, flat in team.weights.items() if not torch.equal(flat, before[key])}
    assert moved == {"critic"}
    assert not torch.equal(target, target_before)
    go(team, experience, env, 2)
    moved = {key for key, flat in team.weights.items() if not torch.equal(flat, before[key])}
    assert moved == set(before)


@pytest.mark.parametrize("name", APART)
def test_targets_begin_at_the_networks_that_a_run_starts_with(name, tmp_path):
    env = ToyEnv(8, 2)
    old, experience = make(name, env, **SMALL)
    go(old, experience, env, 14)
    folder = checkpoint.save(tmp_path, 1_000, old.networks, settings="env: {num_agents: 2}")
    new, experience = make(name, env, is_trained=True, polyak=0.0, policy_delay=1, **SMALL)
    init_from.load(str(folder), new.networks, env.num_agents, new.cfg)
    loaded = [source.clone() for _, source in new.targets]
    fresh = [target.clone() for target, _ in new.targets]
    go(new, experience, env, 14)
    assert new.num_updates > 1
    for (target, source), at_first, before in zip(new.targets, loaded, fresh, strict=True):
        assert torch.equal(target, at_first)
        assert not torch.equal(target, before)
        assert not torch.equal(target, source)  # which has learned meanwhile


def test_a_resumed_team_learns_at_the_rates_of_its_settings():
    saved = make("hasac", ToyEnv(8), **SMALL)[0].state_dict()
    rates = {"learning_rate": 0.125, "critic_learning_rate": 0.25, "alpha_learning_rate": 0.5}
    team, _ = make("hasac", ToyEnv(8), **SMALL | rates)
    team.load_state_dict(saved)
    assert {float(x.learning_rate) for x in team._all_optimizers()} == {*rates.values()}
