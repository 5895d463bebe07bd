"""Model fields with a value for each world. N worlds."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from mqe.world.objects import object_floor_friction, robot_object_friction
from mqe.world.scene import Scene


class WorldFields(dict[str, Tensor]):
    """Model fields (N, ...) by name, copied from the scene's model on first use."""

    def __init__(
        self, scene: Scene, num_envs: int, given: Mapping[str, Tensor] = MappingProxyType({})
    ) -> None:
        """Begin with copies of ``given`` fields."""
        super().__init__({name: values.clone() for name, values in given.items()})
        self._model = scene.model
        self._num_envs = num_envs

    def __missing__(self, name: str) -> Tensor:
        shared = torch.as_tensor(getattr(self._model, name))
        self[name] = shared.repeat(self._num_envs, *[1] * shared.dim())
        return self[name]


def object_friction_fields(scene: Scene, friction: Tensor) -> WorldFields:
    """Return the fields for the object material's ``friction`` (N,) in each world."""
    touch = robot_object_friction(friction).double()
    floor = object_floor_friction(friction).double()
    fields = WorldFields(scene, len(friction))
    fields["geom_friction"][:, scene.object_geoms, 0] = touch.unsqueeze(1)
    fields["pair_friction"][:, scene.object_floor_pairs, :2] = floor.view(-1, 1, 1)
    return fields


def floor_friction_fields(scene: Scene, friction: Tensor) -> WorldFields:
    """Return the field for the floor's ``friction`` (N,) under the robots' feet."""
    fields = WorldFields(scene, len(friction))
    fields["geom_friction"][:, scene.ground_geoms, 0] = friction.double().unsqueeze(1)
    return fields
