"""Random events in a gait's training: initial poses, commands, kicks and forces."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from mapush.extensions.gait.settings import VelocityCfg
from mqe.world.geometry import TWO_PI, on_circle
from mqe.world.streams import Streams, UniformRanges

# Streams: of each world once, of an episode's start, and of each of its control steps.
_RESTLESS = 100
_START = 101
_STEP = 102
_KEYS_AN_EPISODE = 1 << 13  # more control steps than any episode has
# of a kick, and of a new force, in a control step
_KICK_CHANCE = 0.01
_FORCE_CHANCE = 0.015
# of a new command, in most worlds and in restless ones
_RESAMPLE_CHANCE = 0.005
_RESTLESS_CHANCE = 0.1
STANDING_SHARE = 0.12  # of commands, which are zero
RESTLESS_SHARE = 0.15  # of worlds, with about five new commands a second
_SINGLE_AXIS = 0.25  # share of commands along one axis only
# share of commands that ask for a fraction of the speed, and the fraction
_SLOW_SHARE = 0.25
_SLOW = 0.3
# share of commands that ask for half of the largest speed or more on every axis that moves
_BOLD_SHARE = 0.3


class Event(NamedTuple):
    """Every world's random events in one control step."""

    is_new_command: Tensor  # (N,) bool
    is_kicked: Tensor  # (N,) bool
    is_new_force: Tensor  # (N,) bool
    kick: Tensor  # (N, 1, 3) [m/s]
    force: Tensor  # (N, 1, 3) [N]
    command: Tensor  # (N, 1, 3)
    load: Tensor  # (N, 1, 1) [N] that comes with a new command


class RandomEvents:
    """Draws initial poses, commands, kicks and forces for N worlds."""

    def __init__(self, cfg: VelocityCfg, streams: Streams, episode: Tensor) -> None:
        """Draw from ``streams`` on the device of ``episode`` (N,)."""
        device = episode.device
        self._streams = streams
        chance = (0.0, 1.0)
        turn = (0.0, TWO_PI)
        command = [chance, *((-limit, limit) for limit in cfg.max_command)]
        self._start = UniformRanges([chance, *command], device)
        # most of the time no force
        kick = (0.0, cfg.max_kick)
        force = (-3.0 * cfg.max_force, cfg.max_force)
        # a third of the commands without a load
        load = (-0.5 * cfg.max_load, cfg.max_load)
        self._step = UniformRanges(
            [chance] * 3 + [turn] * 2 + [kick, force] + command + [load], device
        )
        self._most = torch.tensor(cfg.max_command, device=device)
        is_restless = streams.uniform(_RESTLESS, streams.once) < RESTLESS_SHARE
        renewal = torch.where(is_restless, _RESTLESS_CHANCE, _RESAMPLE_CHANCE)
        rare = torch.tensor([_KICK_CHANCE, _FORCE_CHANCE], device=device).expand(len(episode), 2)
        self._chances = torch.cat((renewal.unsqueeze(1), rare), dim=1)  # (N, 3)
        # Of four numbers that make a command the first says which axes move: one, another, the
        # third, all, or none.
        kinds = [_SINGLE_AXIS * k / 3 for k in (1, 2, 3)] + [1.0 - STANDING_SHARE]
        self._kinds = torch.tensor(kinds, device=device)
        self._moves = torch.tensor(
            [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1], [0, 0, 0]], device=device
        )

    def start(self, episode: Tensor) -> tuple[Tensor, Tensor]:
        """Draw initial conditions for the episodes ``episode`` (N,).

        Returns each pose's relative position (N,) in the pose table, in [0, 1), and commands (N, 1,
        3).
        """
        pose, command = self._start.draw(self._streams, _START, episode).split((1, 4), dim=1)
        return pose[:, 0], self._command(command)

    def step(self, episode: Tensor, step: Tensor) -> Event:
        """Return the events before control step ``step`` (N,) in the episodes ``episode`` (N,)."""
        key = episode * _KEYS_AN_EPISODE + step
        chance, turn, strength, command, load = self._step.draw(self._streams, _STEP, key).split(
            (3, 2, 2, 4, 1), dim=1
        )
        planar = on_circle(strength.clamp(min=0.0), turn)
        kick, force = pad(planar, (0, 1)).split(1, dim=1)
        new_command, kicked, new_force = (chance < self._chances).unbind(dim=1)
        return Event(
            new_command,
            kicked,
            new_force,
            kick,
            force,
            self._command(command),
            load.clamp(min=0.0).unsqueeze(1),
        )

    def _command(self, drawn: Tensor) -> Tensor:
        """Return commands (N, 1, 3) from random numbers (N, 4)."""
        kind = (drawn[:, :1] >= self._kinds).sum(dim=1)
        # The kind's number, stretched, also says which commands are slow, and which ask for much on
        # every axis.
        fraction = torch.remainder(drawn[:, :1] * 64.0, 1.0)
        command = drawn[:, 1:]
        command = torch.where(
            fraction > 1.0 - _BOLD_SHARE, 0.5 * (command + command.sign() * self._most), command
        )
        speed = torch.where(fraction < _SLOW_SHARE, _SLOW, 1.0)
        return (command * self._moves[kind] * speed).unsqueeze(1)
