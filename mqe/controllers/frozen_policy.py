"""A policy as one artefact: ``policy.yaml`` and the weights beside it.

Controllers, the calculator, films and exports read nothing else. The members of ``POLICY_READERS``
read other folders.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mqe.config import ConfigError, build, dump_yaml, errors_of, load_yaml, option, to_dict
from mqe.controllers.network import TeamNetwork, build_network
from mqe.extensions import Registry
from mqe.hub import HUB, fetch
from mqe.manifest import check_files, sha256
from mqe.pretrained import PRETRAINED, pretrained_folder
from mqe.tensor_files import read_tensors

DESCRIPTION = "policy.yaml"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class PolicyDescription:
    """Contents of ``policy.yaml``."""

    format_version: int = option(FORMAT_VERSION, "version of this format", choices=(1,))
    command: str = option("unknown", "command of the training, or unknown")
    weights: dict[str, str] = option(
        dict,
        "files of weights in the same folder and their SHA-256: one file for all robots, "
        "or one each",
    )
    robots: str | tuple[str, ...] = option("go1", "kind of robot, one for all or one each")
    model: str = option("reference", "env.model of the training")
    num_robots: int = option(1, "number of robots in a team", min=1, max=100)
    largest_team: int | None = option(None, "largest team; null: only num_robots", min=1, max=100)
    decision_period: int = option(
        1, "number of control steps (50 Hz) per decision", min=1, max=1000
    )
    observations: dict[str, dict[str, Any]] = option(
        dict, "terms of a robot's observation in their order: names, units and meaning"
    )
    actions: dict[str, Any] = option(
        dict, "names, unit and frame of an action's components, with scale and limits"
    )
    learned_in: dict[str, dict[str, Any]] = option(dict, "sections env and task of the training")
    actors: tuple[Any, ...] = option(
        (), "layers of the networks in the files of weights: one list for all files, or each"
    )

    def __post_init__(self) -> None:
        if not self.robots:
            raise ValueError("robots: must name at least one kind")
        if len(self.weights) not in (1, self.num_robots):
            raise ValueError(
                f"weights: {len(self.weights)} files for {self.num_robots} robots; list one "
                "file for all robots, or one each"
            )
        if len(self.actors) not in (1, len(self.weights)):
            raise ValueError(
                f"actors: {len(self.actors)} lists of layers for {len(self.weights)} files; "
                "give one list for all files, or one each"
            )
        for name in self.weights:
            if Path(name).name != name:
                raise ValueError(
                    f"weights: must be names of files beside policy.yaml, not {name!r}"
                )
        if set(self.learned_in) - {"env", "task"}:
            raise ValueError("learned_in: must have the sections env and task only")
        for name, term in self.observations.items():
            if not isinstance(term.get("names"), list):
                raise ValueError(
                    f"observations.{name}: must have a list of texts under the key names"
                )

    @property
    def digest(self) -> str:
        """SHA-256 over all weights."""
        return joint_digest(list(self.weights.values()))

    @property
    def task(self) -> Mapping[str, Any]:
        """Task settings in training."""
        return self.learned_in.get("task") or {}

    @property
    def observation_names(self) -> list[str]:
        """Names of all observation components."""
        return [str(name) for term in self.observations.values() for name in term["names"]]

    @property
    def robot(self) -> str:
        """Kind of the first robot."""
        return self.robots if isinstance(self.robots, str) else self.robots[0]


def joint_digest(digests: Sequence[str]) -> str:
    """Return one SHA-256 for several: the digest of their text, or the only one."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


class Policy(NamedTuple):
    """A policy in memory: name in settings, description, tensors by file."""

    name: str
    description: PolicyDescription
    tensors: list[dict[str, Tensor]]

    def network(self, device: torch.device, where: str = "policy") -> TeamNetwork:
        """Build the network on a device.

        Raises ConfigError, with the key in ``where``, if description and weights differ.
        """
        try:
            network = build_network(self.description.actors, self.tensors)
        except ValueError as error:
            raise ConfigError(f"{where}: '{self.name}': {error}; name another policy") from None
        return network.to(device)


# Each returns a policy, or None for a folder of another kind.
POLICY_READERS: Registry[Callable[[str], Policy | None]] = Registry("reader of policies")


def read_policy(name: str, where: str = "policy") -> Policy:
    """Return the policy in a folder, or ``pretrained:NAME``.

    Raises ConfigError, with the key in ``where``, for a missing or damaged policy.
    """
    folder = policy_folder(name, where)
    if not (folder / DESCRIPTION).is_file():
        return _read_other(name, where)
    description = describe_policy(name, where)
    tensors = []
    for file, digest in description.weights.items():
        path = folder / file
        if not path.is_file():
            raise ConfigError(f"{where}: '{name}' lacks {file}; name another policy")
        if digest != sha256(path):
            raise ConfigError(
                f"{where}: '{name}': {file} is damaged (its SHA-256 is not the one in "
                f"{DESCRIPTION}); name another policy"
            )
        tensors.append(read_tensors(path))
    return Policy(name, description, tensors)


def describe_policy(name: str, where: str = "policy") -> PolicyDescription:
    """Return a policy's description alone."""
    folder = policy_folder(name, where)
    if not (folder / DESCRIPTION).is_file():
        return _read_other(name, where).description
    check_files(folder, [DESCRIPTION])
    values = load_yaml(folder / DESCRIPTION)
    return build(PolicyDescription, values, f"{where}: '{name}': {DESCRIPTION}")


def write_description(folder: Path, description: PolicyDescription) -> None:
    """Write ``policy.yaml`` into the folder with the weights."""
    text = dump_yaml(to_dict(description))
    (folder / DESCRIPTION).write_text(text, encoding="utf-8")


def policy_folder(name: str, where: str) -> Path:
    """Return the folder of a policy: shipped, fetched from the Hub, or a path.

    ``where`` names the setting in errors. Raises ConfigError if there is no such folder or policy.
    """
    if name.startswith(PRETRAINED):
        return pretrained_folder(name.removeprefix(PRETRAINED))
    if name.startswith(HUB):
        return fetch(name.removeprefix(HUB))
    folder = Path(name)
    if not folder.exists():
        raise ConfigError(
            f"{where}: there is no folder '{folder.absolute()}'; name a checkpoint, or "
            "pretrained:NAME"
        )
    return folder


def _read_other(name: str, where: str) -> Policy:
    for reader in POLICY_READERS.values():
        with errors_of(where):
            policy = reader(name)
        if policy is not None:
            return policy
    raise ConfigError(
        f"{where}: '{name}' is no policy: it has no {DESCRIPTION} and is no checkpoint; name a "
        "checkpoint, or pretrained:NAME"
    )
