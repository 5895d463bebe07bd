"""A frozen gait as a controller: from a checkpoint's files to joint targets that follow velocity
commands.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mqe.config import ConfigError, load_yaml, unknown
from mqe.controllers.blocks import ActiveWorlds, Blocks
from mqe.controllers.trot import GAIT_OBS_SIZE, GaitMemory, Trot, is_moving
from mqe.manifest import MANIFEST, check_files, sha256
from mqe.tensor_files import read_tensors
from mqe.world.robots import DEFAULT_ROBOT, NUM_JOINTS, RobotCfg, Robots
from mqe.world.state import SceneState

PRETRAINED = "pretrained:"
_UNKNOWN_LAYERS = (
    "normalize_obs",
    "use_feature_normalization",
    "use_layer_norm",
    "use_recurrent_policy",
)
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "leaky_relu": nn.LeakyReLU,
    "hardswish": nn.Hardswish,
    "identity": nn.Identity,
}


class GaitController:
    """Frozen gaits that turn velocity commands into joint targets, one control step at a time."""

    def __init__(self, policy: Callable[[Tensor], Tensor], num_envs: int, robots: Robots) -> None:
        """Move ``robots`` of N worlds with ``policy``, observation (N, A, 59) to action (N, A,
        J).
        """
        self._policy = policy
        self._trot = Trot(robots)
        self._memory = GaitMemory(
            torch.zeros(num_envs, len(robots), GaitMemory.SIZE, device=robots.device)
        )
        self._command = torch.zeros(num_envs, len(robots), 3, device=robots.device)

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        """Run the policy over blocks of the active ones of ``worlds``."""
        self._policy = Blocks(self._policy, worlds)

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask`` (N,)."""
        self._command.masked_fill_(mask.view(-1, 1, 1), 0.0)
        self._memory.begin(mask)

    def command(self, velocity: Tensor) -> None:
        """Hold a command (N, A, 3) from now on: vx, vy [m/s] in the heading frame, yaw rate
        [rad/s].
        """
        self._command.copy_(velocity)

    @torch.no_grad()
    def targets(self, state: SceneState) -> Tensor:
        """Return joint targets (N, A, J) [rad] for the coming control step."""
        moving = is_moving(self._command)
        action = self._policy(self._trot.observe(state, self._command, moving, self._memory))
        return self._trot.act(self._memory, action, moving)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is carried from one control step to the next."""
        return {"command": self._command.clone(), "memory": self._memory.values.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume from ``state_dict``."""
        self._command.copy_(state["command"])
        self._memory.values.copy_(state["memory"])


class GaitNetwork(nn.Module):
    """A multilayer perceptron from gait observations (..., 59) to joint actions (..., J), weights
    frozen.
    """

    def __init__(
        self, layers: list[tuple[Tensor, Tensor]], activation: str, mean_bound: float | None = None
    ) -> None:
        """Stack ``layers`` with ``activation`` between them; tanh keeps actions within +-
        ``mean_bound``.
        """
        super().__init__()
        self._weights = nn.ParameterList(
            [nn.Parameter(weight.t().contiguous(), False) for weight, _ in layers]
        )
        self._biases = nn.ParameterList([nn.Parameter(bias, False) for _, bias in layers])
        self._activation = ACTIVATIONS[activation]()
        self._mean_bound = mean_bound

    def forward(self, obs: Tensor) -> Tensor:
        """Return the mean action (..., J)."""
        x = obs.flatten(0, -2)
        last = len(self._weights) - 1
        for k, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            x = torch.addmm(bias, x, weight)
            if k < last:
                x = self._activation(x)
        if self._mean_bound is not None:
            x = self._mean_bound * torch.tanh(x / self._mean_bound)
        return x.unflatten(0, obs.shape[:-1])


def pretrained_folder(name: str) -> Path:
    """Return the folder of a policy that ships with the package, or raise ConfigError with the
    names there are.
    """
    known = pretrained_names()
    if name not in known:
        raise ConfigError(
            f"unknown pretrained policy '{name}'; there are: {', '.join(known) or 'none'}"
        )
    folder = _pretrained_root() / name
    if not (folder / MANIFEST).is_file():
        raise ConfigError(
            f"pretrained:{name}: {folder} lacks {MANIFEST}; install mapush anew, or, if you put "
            "a policy there, write "
            f"it with: python -m mqe.manifest {folder}"
        )
    return folder


def pretrained_names() -> list[str]:
    """Return the policies that ship with the package, by name."""
    root = _pretrained_root()
    if root.is_dir():
        return sorted(path.name for path in root.iterdir() if (path / "config.yaml").is_file())
    return []


def _pretrained_root() -> Path:
    return Path(str(resources.files("mqe"))) / "assets" / "pretrained"


def from_anywhere(what: str) -> str:
    """Return a gait's name such that it is found from any folder."""
    return what if what.startswith(PRETRAINED) else str(Path(what).absolute())


def gait_folder(what: str) -> Path:
    """Return the folder of ``pretrained:NAME``, or the one that ``what`` is the path of."""
    if what.startswith(PRETRAINED):
        return pretrained_folder(what.removeprefix(PRETRAINED))
    return Path(what)


def gait_names(what: str | Sequence[str] | None, robots: Sequence[RobotCfg]) -> list[str]:
    """Return the gait of each robot: ``what`` for all of them, or one each; None takes each
    robot's own.
    """
    if what is None:
        return [cfg.gait for cfg in robots]
    return [what] * len(robots) if isinstance(what, str) else list(what)


def gait_digest(names: Sequence[str]) -> str:
    """Return a SHA-256 of gaits' weights: a gait may be retrained under its old name."""
    digests = [sha256(gait_folder(name) / "actor_agent0.pt") for name in dict.fromkeys(names)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def load_team_gait(what: str | Sequence[str] | None, robots: Robots) -> Callable[[Tensor], Tensor]:
    """Load what moves a team, observations (N, A, 59) to actions (N, A, J); raise ConfigError.

    ``what`` names the gait of all robots, or of each; None takes each robot's own.
    """
    num_robots = len(robots)
    names = gait_names(what, robots.cfgs)
    if len(names) != num_robots:
        raise ConfigError(
            f"task.gait: {names} are {len(names)} gaits for {num_robots} robots; name one, or each"
        )
    kinds = list(zip(names, robots.cfgs, strict=True))
    gaits = [
        (
            load_gait(name, robots.device, cfg),
            [i for i, kind in enumerate(kinds) if kind == (name, cfg)],
        )
        for name, cfg in dict.fromkeys(kinds)
    ]
    return gaits[0][0] if len(gaits) == 1 else MixedGait(gaits)


class MixedGait:
    """Several gaits, each for its own robots of every team."""

    def __init__(self, gaits: Sequence[tuple[GaitNetwork, list[int]]]) -> None:
        """Take gaits with the robots that walk by them."""
        device = next(gaits[0][0].parameters()).device
        self._gaits = [(gait, torch.tensor(robots, device=device)) for gait, robots in gaits]
        self._order = torch.cat([robots for _, robots in self._gaits]).argsort()

    def __call__(self, obs: Tensor) -> Tensor:
        """Return the mean actions (N, A, J) of observations (N, A, 59)."""
        return torch.cat([gait(obs[:, robots]) for gait, robots in self._gaits], dim=1)[
            :, self._order
        ]


def load_gait(what: str, device: torch.device, robot: RobotCfg | None = None) -> GaitNetwork:
    """Load the gait of a checkpoint folder or ``pretrained:NAME``; raise ConfigError, also for one
    of another robot.
    """
    folder = gait_folder(what)
    if not folder.is_dir():
        raise ConfigError(
            f"task.gait: there is no folder '{folder.absolute()}'; name a checkpoint or "
            "pretrained:NAME"
        )
    for name in ("config.yaml", "actor_agent0.pt"):
        if not (folder / name).is_file():
            raise ConfigError(
                f"task.gait: '{what}' is no checkpoint of a gait, it lacks {name}; say "
                "pretrained:NAME"
            )
    check_files(folder, ["config.yaml", "actor_agent0.pt"])
    settings = load_yaml(folder / "config.yaml")
    network = _network_of(what, settings)
    if robot is not None and (kind := _robot_of(settings)) != robot.name:
        raise ConfigError(
            f"task.gait: '{what}' is the gait of a {kind}, not of a {robot.name}; leave it out, "
            "or name "
            f"one that was trained with env.robots={robot.name}"
        )
    weights = read_tensors(folder / "actor_agent0.pt")
    names = [
        name.removesuffix(".weight")
        for name in weights
        if re.fullmatch(r"base\.mlp\.fc\.\d+\.weight", name)
    ]
    try:
        layers = [
            (weights[f"{name}.weight"], weights[f"{name}.bias"])
            for name in (*names, "act.action_out.fc_mean")
        ]
    except KeyError as error:
        raise ConfigError(
            f"task.gait: '{what}' is no gait, its actor lacks {error}; say pretrained:NAME"
        ) from None
    sizes = [GAIT_OBS_SIZE, *(weight.shape[0] for weight, _ in layers[:-1]), NUM_JOINTS]
    for (weight, bias), size_in, size_out in zip(layers, sizes, sizes[1:], strict=False):
        if weight.shape != (size_out, size_in) or bias.shape != (size_out,):
            raise ConfigError(
                f"task.gait: '{what}' is no gait: a layer is {tuple(weight.shape)} where "
                f"{(size_out, size_in)} fits "
                f"{GAIT_OBS_SIZE} observations and {NUM_JOINTS} joints; say pretrained:NAME"
            )
    return GaitNetwork(layers, network["activation"], network.get("mean_bound")).to(device)


def _robot_of(settings: Mapping[str, Any]) -> str:
    """Return the kind of robot that a gait was trained on: settings older than ``env.robots`` are
    of the default.
    """
    env = settings.get("env")
    kinds = env.get("robots", DEFAULT_ROBOT) if isinstance(env, Mapping) else DEFAULT_ROBOT
    return str(kinds if isinstance(kinds, str) else kinds[0])


def _network_of(what: str, cfg: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the network section of a gait's settings, checked."""
    task = cfg.get("task")
    network = cfg.get("network")
    if not isinstance(task, Mapping) or not isinstance(network, Mapping):
        raise ConfigError(
            f"task.gait: '{what}' lacks the sections task and network in its config.yaml"
        )
    for key in _UNKNOWN_LAYERS:
        if network.get(key):
            raise ConfigError(
                f"task.gait: '{what}' was trained with network.{key}; a gait is a plain MLP"
            )
    if network.get("activation") not in ACTIVATIONS:
        raise ConfigError(
            f"task.gait: '{what}': {unknown('activation', network.get('activation'), ACTIVATIONS)}"
        )
    return network
