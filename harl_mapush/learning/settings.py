"""Settings for networks and algorithms. Only registries are imported."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from harl_mapush.learning.formula_sets import OFF_POLICY_FORMULAS, ON_POLICY_FORMULAS
from mqe.config import option
from mqe.controllers.network import ACTIVATIONS
from mqe.vec_env import Symmetries, TeamSpec

INITIALIZATIONS = ("orthogonal_", "xavier_uniform_", "xavier_normal_")
_WIDEST = 16_384  # largest layer; the weights between two such layers take 1 GiB


@dataclass(frozen=True)
class NetworkCfg:
    """Section ``network``: sizes and initial weights of actors and critic."""

    hidden_sizes: tuple[int, ...] = option(
        (64, 64), "sizes of the actor's hidden layers", min=1, max=_WIDEST
    )
    critic_hidden_sizes: tuple[int, ...] = option(
        (),
        "sizes of the critic's hidden layers; empty: equal to hidden_sizes",
        min=1,
        max=_WIDEST,
    )
    activation: str = option(
        "elu", "activation function of the hidden layers", choices=tuple(ACTIVATIONS)
    )
    use_feature_normalization: bool = option(False, "LayerNorm on the network's input (HARL)")
    use_layer_norm: bool = option(
        False,
        "LayerNorm after every hidden layer; on-policy algorithms under compat=harl always have it",
    )
    initialization_method: str = option(
        "orthogonal_", "initialisation method of the layers' weights", choices=INITIALIZATIONS
    )
    gain: float = option(
        0.01, "gain of the initial weights of the actor's output layer", min=1e-6, max=100.0
    )
    std_x_coef: float = option(
        1.0,
        "scale of log_std in std = std_min + (std_y_coef - std_min) * "
        "sigmoid(log_std / std_x_coef)",
        min=1e-3,
        max=1e3,
    )
    std_y_coef: float = option(
        1.0, "upper bound of the actions' standard deviation, see std_x_coef", min=1e-3, max=100.0
    )
    std_min: float = option(
        0.0, "lower bound of the actions' standard deviation, see std_x_coef", min=0.0, max=100.0
    )
    initial_std: float | None = option(
        None,
        "initial standard deviation of the actions; null: its value for log_std = std_x_coef",
        min=1e-4,
        max=100.0,
    )
    mean_bound: float | None = option(
        None,
        "bound of the mean actions, imposed by tanh; null: no bound, as always under compat=harl",
        min=1e-3,
        max=1e3,
    )
    set_width: int = option(64, "size of the hidden layers that read sets", min=1, max=_WIDEST)
    use_recurrent_policy: bool = option(False, "a GRU after the hidden layers of actor and critic")
    num_recurrent_layers: int = option(1, "number of layers of the GRU", min=1, max=64)
    chunk_length: int = option(
        10,
        "length of a GRU's training sequences in decisions; 0: the whole rollout",
        min=0,
        max=1_000_000,
    )

    def __post_init__(self) -> None:
        """Raise ValueError for no layers, or for contradictory standard deviations."""
        if not self.hidden_sizes:
            raise ValueError("hidden_sizes must name at least one layer, for instance [64, 64]")
        if self.std_min >= self.std_y_coef:
            raise ValueError(
                f"std_min must be below std_y_coef ({self.std_y_coef}), not {self.std_min}"
            )
        if self.initial_std is not None and not self.std_min < self.initial_std < self.std_y_coef:
            raise ValueError(
                "initial_std must lie between std_min and std_y_coef "
                f"({self.std_min}, {self.std_y_coef}), not {self.initial_std}"
            )


@dataclass(frozen=True)
class AlgorithmCfg:
    """Section ``algorithm``: the members of every algorithm's settings."""

    # Whether the algorithm is a ``ReplayLearner`` (``collectors/learner.py``).
    takes_collectors: ClassVar[bool] = False

    name: str = option("", "name of the learning algorithm")

    def built_network(self, network: NetworkCfg) -> NetworkCfg:
        """Convert a run's network settings to the algorithm's."""
        return network

    def for_acting(self) -> Self:
        """Return the settings for acting alone, without parts that take memory or time to learn."""
        return self

    def with_absolute_paths(self) -> Self:
        """Return the settings with absolute paths to policies."""
        return self

    def team_spec(self, env: Any) -> TeamSpec:
        """Return the properties of the team that learns in ``env``."""
        return env.spec

    def idle_settings(self, spec: TeamSpec, num_transitions: int, num_ranks: int = 1) -> list[str]:
        """Return a line for each setting without effect on a team with ``spec``, in a run with
        ``num_transitions`` in all on ``num_ranks`` ranks.
        """
        return []


@dataclass(frozen=True)
class LearnerCfg(AlgorithmCfg):
    """Settings common to on- and off-policy algorithms."""

    share_param: bool = option(False, "one actor shared by all agents")
    gamma: float = option(0.99, "discount factor per decision", min=0.0, max=1.0)
    weight_decay: float = option(
        0.0, "L2 penalty that Adam adds to the gradients", min=0.0, max=10.0
    )
    use_huber_loss: bool = option(
        True, "Huber loss of the values with threshold huber_delta; false: squared error"
    )
    huber_delta: float = option(
        10.0,
        "error beyond which the Huber loss is linear, in units of the normalised values",
        min=1e-6,
        max=1e6,
    )
    use_policy_active_masks: bool = option(True, "exclusion of dead agents from their actor's loss")


@dataclass(frozen=True)
class OnPolicyCfg(LearnerCfg):
    """Settings common to on-policy algorithms. A subclass adds its name and settings."""

    compat: str = option(
        "mapush",
        "variant of the formulas: mapush's own, or upstream HARL's within rounding",
        choices=ON_POLICY_FORMULAS,
    )
    team_reward: str = option(
        "mean",
        "reward that agents learn from: the team's mean or sum, or each agent's own; own under "
        "compat=harl with EP states: agent 0's",
        choices=("mean", "sum", "own"),
    )
    num_epochs: int = option(
        5, "number of passes over a rollout in the actors' update", min=1, max=1000
    )
    critic_num_epochs: int | None = option(
        None,
        "number of passes over a rollout in the critic's update; null: num_epochs",
        min=1,
        max=1000,
    )
    num_minibatches: int = option(
        4, "number of minibatches in a pass of the actors' update", min=1, max=1_000_000
    )
    critic_num_minibatches: int | None = option(
        None,
        "number of minibatches in a pass of the critic's update; null: num_minibatches",
        min=1,
        max=1_000_000,
    )
    learning_rate: float = option(1e-3, "learning rate of the actors", min=1e-30, max=100.0)
    critic_learning_rate: float = option(1e-3, "learning rate of the critic", min=1e-30, max=100.0)
    schedule: str = option(
        "constant",
        "schedule of the learning rates; linear: decay to zero over the run; adaptive: the "
        "actors' rates keep the KL divergence of an update near desired_kl",
        choices=("constant", "linear", "adaptive"),
    )
    desired_kl: float = option(
        0.01,
        "target KL divergence of a minibatch's update under schedule=adaptive [nat]",
        min=1e-6,
        max=10.0,
    )
    adam_eps: float = option(1e-5, "term added to the denominator in Adam", min=1e-20, max=1.0)
    max_grad_norm: float = option(
        1.0,
        "largest norm of a gradient; larger ones are scaled down to it; 0: no clipping",
        min=0.0,
        max=1e6,
    )
    clip_param: float = option(
        0.2, "PPO clipping range of the probability ratio and of the value", min=1e-4, max=100.0
    )
    entropy_coef: float = option(
        0.01, "weight of the entropy bonus in the actors' loss", min=0.0, max=1e3
    )
    mirror_loss_coef: float = option(
        0.0,
        "weight of the mirror loss, the squared difference between an actor's mean action for a "
        "mirrored observation and its mirrored mean action",
        min=0.0,
        max=1e4,
    )
    value_loss_coef: float = option(1.0, "weight of the critic's loss", min=0.0, max=1e4)
    use_clipped_value_loss: bool = option(
        False,
        "clipping of the critic's values to within clip_param of the rollout's, as in PPO's loss",
    )
    lam: float = option(0.95, "lambda of GAE, per decision", min=0.0, max=1.0)
    use_proper_time_limits: bool = option(
        True,
        "treatment of time-outs apart from terminations under compat=harl; compat=mapush always "
        "bootstraps them",
    )
    use_value_norm: bool = option(
        True, "normalisation of the critic's targets by their running mean and standard deviation"
    )

    def built_network(self, network: NetworkCfg) -> NetworkCfg:
        """Return the network settings with the formulas' requirements."""
        return replace(network, **ON_POLICY_FORMULAS[self.compat].network)


@dataclass(frozen=True)
class OffPolicyCfg(LearnerCfg):
    """Settings common to off-policy algorithms. A subclass adds its name and settings."""

    takes_collectors: ClassVar[bool] = True

    compat: str = option(
        "mapush",
        "variant of the formulas: mapush's own, or upstream HARL's within rounding",
        choices=OFF_POLICY_FORMULAS,
    )
    is_sequential: bool = option(
        True,
        "updates of the actors one after another, each given the others' newest actions; false: "
        "given the actions in the replay buffer",
    )
    all_at_once: bool = option(
        False,
        "one update of a shared actor with the new actions of all agents, in place of one for each "
        "agent; needs share_param and is_sequential",
    )
    fixed_order: bool = option(
        False, "updates in the order of the agents' numbers instead of a random order"
    )
    team_reward: str = option(
        "mean",
        "reward that agents learn from: the team's mean or sum, or each agent's own; own needs "
        "task.state_type=FP",
        choices=("mean", "sum", "own"),
    )
    buffer_size: int = option(
        1_000_000, "capacity of the replay buffer in transitions", min=1, max=10**8
    )
    save_replay: bool = option(
        True,
        "saving of the replay buffer in every checkpoint; false: a resumed run starts with an "
        "empty one",
    )
    warmup: int = option(
        10_000,
        "number of transitions before the first update; their actions are random, or those of "
        "init_from's actors",
        min=0,
        max=10**9,
    )
    batch_size: int = option(1024, "number of transitions in a batch", min=1, max=2**22)
    update_ratio: float = option(
        0.03, "number of updates per transition of one environment", min=1e-6, max=1e4
    )
    beside_collecting: bool = option(
        False,
        "updates on a GPU in parallel with collecting; the collecting team's weights are then "
        "one block of decisions older; without effect with collectors or several ranks",
    )
    n_step: int = option(
        3,
        "number of rewards in an n-step return, before the critics' value of the next state",
        min=1,
        max=1000,
    )
    polyak: float = option(
        0.01,
        "Polyak factor: fraction by which an update moves the target networks to the trained ones",
        min=0.0,
        max=1.0,
    )
    policy_delay: int = option(1, "number of critic updates per actor update", min=1, max=1000)
    critic_warmup: int = option(
        0,
        "number of updates of the critics before the first one of the actors, for init_from's "
        "actors and critics that begin anew",
        min=0,
        max=10**9,
    )
    learning_rate: float = option(5e-4, "learning rate of the actors", min=1e-30, max=100.0)
    critic_learning_rate: float = option(5e-4, "learning rate of the critics", min=1e-30, max=100.0)
    schedule: str = option(
        "constant",
        "schedule of the learning rates; linear: decay to zero over the run",
        choices=("constant", "linear"),
    )
    adam_eps: float = option(1e-8, "term added to the denominator in Adam", min=1e-20, max=1.0)
    max_grad_norm: float = option(
        0.0,
        "largest norm of a gradient; larger ones are scaled down to it; 0: no clipping",
        min=0.0,
        max=1e6,
    )
    use_value_norm: bool = option(
        False, "normalisation of values under compat=harl; compat=mapush always scales returns"
    )
    symmetries: tuple[str, ...] = option(
        (),
        "symmetries by which transitions in a batch are replaced by images, an equal share by "
        "each and each combination: mirror (left and right swapped), turn (the object at its "
        "next heading of equal appearance), numbers (robots numbered from another one on)",
        choices=Symmetries._fields,
    )

    def built_network(self, network: NetworkCfg) -> NetworkCfg:
        """Return the network settings with the formulas' requirements."""
        return replace(network, **OFF_POLICY_FORMULAS[self.compat].network)

    def for_acting(self) -> Self:
        """Return settings without updates in parallel with collecting."""
        return replace(self, beside_collecting=False)

    def idle_settings(self, spec: TeamSpec, num_transitions: int, num_ranks: int = 1) -> list[str]:
        """Return a line for a warm-up longer than the run, for symmetries without images, and for
        several ranks.
        """
        lines = []
        if num_ranks > 1:
            lines.append(
                f"{num_ranks} ranks: {self.name} learns a team hardly sooner than on one GPU "
                "(docs/results/speed.md); several GPUs serve several seeds, settings or algorithms "
                "better, a run on each (docs/guides/gpu.md)"
            )
        num_updates = int(self.update_ratio * max(num_transitions - self.warmup, 0))
        if 0 < self.critic_warmup >= num_updates:
            lines.append(
                f"algorithm.critic_warmup={self.critic_warmup}: the run has about {num_updates} "
                "updates, and actors never learn; raise runner.num_env_steps, or lower "
                "algorithm.critic_warmup"
            )
        for name in self.symmetries:
            image = getattr(spec.symmetries, name)
            if image is not None and image.is_identity:
                lines.append(
                    f"algorithm.symmetries: {name} changes nothing for this team and object"
                )
        return lines
