import math

import pytest
import torch
from torch import nn

from harl_mapush.learning.networks import Actor, Critic, dense
from harl_mapush.learning.settings import NetworkCfg
from mqe.config import ConfigError, build
from mqe.controllers.network import ACTIVATIONS
from tests.support.rounding import in_double, rounding

HARL = NetworkCfg(  # upstream's layers
    hidden_sizes=(24, 16),
    use_feature_normalization=True,
    std_y_coef=0.5,
    std_min=0.0,
    use_layer_norm=True,
)


def test_parameter_names_and_order_are_harls():
    layers = ["feature_norm", "mlp.fc.0", "mlp.fc.2", "mlp.fc.3", "mlp.fc.5"]
    body = [f"base.{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    head = [
        "act.action_out.log_std",
        "act.action_out.fc_mean.weight",
        "act.action_out.fc_mean.bias",
    ]
    assert [name for name, _ in Actor(HARL, 8, 3).named_parameters()] == body + head
    assert [name for name, _ in Critic(HARL, 17).named_parameters()] == [
        *body,
        "v_out.weight",
        "v_out.bias",
    ]


def test_recurrent_parameter_names_are_harls():
    cfg = NetworkCfg(hidden_sizes=(6,), use_recurrent_policy=True)
    rnn = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    expected = [*(f"rnn.rnn.{name}" for name in rnn), "rnn.norm.weight", "rnn.norm.bias"]
    assert [
        name for name, _ in Actor(cfg, 4, 2).named_parameters() if name.startswith("rnn")
    ] == expected


def test_layers_in_harls_order():
    actor = Actor(HARL, 8, 3)
    obs = torch.randn(5, 8)
    state = actor.state_dict()
    x = nn.functional.layer_norm(
        obs, (8,), state["base.feature_norm.weight"], state["base.feature_norm.bias"]
    )
    for k in (0, 3):
        linear = nn.functional.linear(
            x, state[f"base.mlp.fc.{k}.weight"], state[f"base.mlp.fc.{k}.bias"]
        )
        norm = f"base.mlp.fc.{k + 2}"
        active = nn.functional.elu(linear)
        x = nn.functional.layer_norm(
            active, active.shape[-1:], state[f"{norm}.weight"], state[f"{norm}.bias"]
        )
    head = "act.action_out.fc_mean"
    mean = nn.functional.linear(x, state[f"{head}.weight"], state[f"{head}.bias"])
    bound = rounding(mean, in_double(actor)(obs.double()))
    assert torch.allclose(actor(obs), mean, rtol=0.0, atol=bound)


def test_standard_deviation_is_bounded_and_starts_where_harls_does():
    actor = Actor(HARL, 8, 3)
    assert actor.std().tolist() == pytest.approx([0.5 / (1.0 + math.exp(-1.0))] * 3)
    with torch.no_grad():
        actor.get_parameter("act.action_out.log_std").fill_(50.0)
    assert (actor.std() <= 0.5).all()


def test_mean_actions_are_bounded_where_asked():
    bounded = Actor(NetworkCfg(mean_bound=0.5), 4, 2)
    free = Actor(NetworkCfg(), 4, 2)
    free.load_state_dict(bounded.state_dict())
    with torch.no_grad():
        for actor in (bounded, free):
            actor.get_parameter("act.action_out.fc_mean.bias").copy_(torch.tensor([0.25, -9.0]))
    obs = torch.zeros(1, 4)
    assert free(obs)[0].tolist() == pytest.approx([0.25, -9.0])
    assert bounded(obs)[0].tolist() == pytest.approx([0.5 * math.tanh(0.5), -0.5])


def test_initial_and_least_standard_deviation():
    cfg = NetworkCfg(initial_std=0.4, std_min=0.1, std_y_coef=0.9, std_x_coef=2.0)
    actor = Actor(cfg, 4, 2)
    assert actor.std().tolist() == pytest.approx([0.4, 0.4])
    with torch.no_grad():
        actor.get_parameter("act.action_out.log_std").fill_(-100.0)
    assert actor.std().tolist() == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_sizes": []},
        {"initial_std": 1.5},
        {"std_min": 1.0},
        {"activation": "tahn"},
        {"gain": -1.0},
    ],
)
def test_settings_that_contradict_themselves_are_refused(values):
    with pytest.raises(ConfigError):
        build(NetworkCfg, values, "network")


def test_recurrent_unroll_forgets_at_an_episode_start():
    torch.manual_seed(0)
    actor = Actor(
        NetworkCfg(hidden_sizes=(6,), use_recurrent_policy=True, num_recurrent_layers=2), 4, 2
    )
    obs = torch.randn(3, 5, 4)
    hidden = torch.randn(5, 2, 6)
    masks = torch.ones(3, 5)
    masks[1, 0] = 0.0
    means, after = actor.unroll(obs, hidden, masks)
    assert after is not None
    exact, _ = in_double(actor).unroll(obs.double(), hidden.double(), masks.double())
    bound = rounding(means, exact)
    fresh, _ = actor.unroll(obs[1:, :1], torch.zeros(1, 2, 6), torch.ones(2, 1))
    assert torch.allclose(means[1:, :1], fresh, rtol=0.0, atol=bound)
    resumed, _ = actor.unroll(obs[2:], after[1], masks[2:])
    assert torch.allclose(means[2:], resumed, rtol=0.0, atol=bound)


@pytest.mark.parametrize("num_recurrent_layers", [1, 2])
def test_recurrent_unroll_is_one_decision_after_another(num_recurrent_layers):
    torch.manual_seed(0)
    cfg = NetworkCfg(
        hidden_sizes=(6,), use_recurrent_policy=True, num_recurrent_layers=num_recurrent_layers
    )
    actor = Actor(cfg, 4, 2)
    obs = torch.randn(7, 5, 4)
    hidden = torch.randn(5, num_recurrent_layers, 6)
    masks = torch.ones(7, 5)
    masks[0, 1] = masks[3, 0] = masks[4, 4] = masks[6, 2] = 0.0
    means, after = actor.unroll(obs, hidden, masks)
    assert after is not None
    assert after.shape == (7, 5, num_recurrent_layers, 6)
    exact, exact_after = in_double(actor).unroll(obs.double(), hidden.double(), masks.double())
    assert exact_after is not None
    bound = max(rounding(means, exact), rounding(after, exact_after))
    for t in range(7):
        mean, state = actor.unroll(obs[t : t + 1], hidden, masks[t : t + 1])
        assert state is not None
        assert torch.allclose(mean[0], means[t], rtol=0.0, atol=bound)
        assert torch.allclose(state[0], after[t], rtol=0.0, atol=bound)
        hidden = state[0]


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_a_dense_layer_is_a_linear_one_and_its_activation_twice_differentiable(activation):
    linear = nn.Linear(5, 4).double()
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)

    def layer(x, weight, bias):
        return dense(x, weight, bias, activation)

    inputs = (x, linear.weight, linear.bias)
    torch.testing.assert_close(
        layer(*inputs), ACTIVATIONS[activation]()(linear(x)), rtol=0, atol=1e-14
    )
    assert torch.autograd.gradcheck(layer, inputs)
    assert torch.autograd.gradgradcheck(layer, inputs)
    assert layer(x[:0], linear.weight, linear.bias).shape == (0, 3, 4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("use_layer_norm", [False, True])
def test_a_body_is_its_layers_in_turn(use_layer_norm, activation):
    actor = Actor(
        NetworkCfg(hidden_sizes=(7, 6), activation=activation, use_layer_norm=use_layer_norm), 4, 2
    )
    obs = torch.randn(3, 4)
    torch.testing.assert_close(actor.base(obs), actor.base.mlp["fc"](obs))
    torch.testing.assert_close(actor(obs[0]), actor(obs)[0])
