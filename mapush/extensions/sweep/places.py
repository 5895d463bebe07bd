"""The places where a sweep's trials train: on this machine, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from mapush.extensions.ray.registration import ADDRESS
from mapush.extensions.sweep.trial_process import Progress, RunningTrial, TrialProcess, TrialSpec
from mapush.extensions.sweep.trials import OPEN
from mqe.config import ConfigError
from mqe.cores import num_cores

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Places(Protocol):
    """A number of places, each for one trial at a time."""

    num_places: int

    def start(self, place: int, spec: TrialSpec) -> RunningTrial:
        """Start a trial at a free place."""
        ...

    def close(self) -> None:
        """Free what the places hold."""
        ...


def make_places(jobs: int, gpu_share: float) -> Places:
    """Return ``jobs`` places on cores, or as many as fit on the GPUs with ``gpu_share`` each.

    They are on the Ray cluster that RAY_ADDRESS names, or else on this machine.
    """
    if ADDRESS in os.environ:
        return RayPlaces(jobs, gpu_share)
    if not gpu_share:
        return LocalPlaces([{}] * jobs)
    visible = os.environ.get(_VISIBLE)
    gpus = visible.split(",") if visible else [str(k) for k in range(torch.cuda.device_count())]
    places = [{_VISIBLE: gpu} for _ in range(int(1.0 / gpu_share)) for gpu in gpus]
    return LocalPlaces(places[: num_cores()])


class LocalPlaces:
    """Places on this machine, each with environment variables of its own."""

    def __init__(self, variables: Sequence[dict[str, str]]) -> None:
        """Take the environment variables of each place."""
        self.num_places = len(variables)
        self._variables = variables

    def start(self, place: int, spec: TrialSpec) -> TrialProcess:
        """Start a trial in a child process."""
        return TrialProcess(spec, self._variables[place])

    def close(self) -> None:
        """Do nothing: places on this machine hold no resource."""


class RayPlaces:
    """Places on a Ray cluster, whose machines share the sweep's folder; a trial is an actor."""

    def __init__(self, jobs: int, gpu_share: float) -> None:
        """Join the cluster; raise ConfigError if Ray is missing, or it does not answer."""
        try:
            import ray
        except ImportError:
            raise ConfigError(
                f"{ADDRESS} is set, but ray is missing; pip install 'mapush[ray]', or unset it"
            ) from None
        from mapush.extensions.ray import cluster as ray_cluster

        with ray_cluster.signal_handlers_kept():
            self._session = ray_cluster.connect()
        self._ray = ray
        self._leave = ray_cluster.leave
        has = ray.cluster_resources()
        fit = has.get("GPU", 0.0) / gpu_share if gpu_share else float(jobs)
        self.num_places = int(min(fit, has.get("CPU", 0.0)))
        if self.num_places < 1:
            raise ConfigError(f"{ADDRESS}: the Ray cluster has no room for a trial, only {has}")
        self._actor = ray.remote(num_cpus=1, num_gpus=gpu_share)(TrialProcess)

    def start(self, place: int, spec: TrialSpec) -> RayTrial:
        """Start a trial wherever Ray finds room."""
        return RayTrial(self._ray, self._actor.remote(spec, {}, is_grandchild=True))

    def close(self) -> None:
        """Leave the cluster."""
        self._leave(self._session)


class RayTrial:
    """A trial in an actor; if the actor is lost, the trial may be resumed."""

    def __init__(self, ray: Any, actor: Any) -> None:
        """Drive ``actor``, a ``TrialProcess``."""
        self._ray = ray
        self._actor = actor

    def poll(self) -> Progress:
        """Return the progress since the last call."""
        try:
            return self._ray.get(self._actor.poll.remote())
        except self._ray.exceptions.RayError:
            return Progress([], OPEN)

    def end(self) -> None:
        """Ask the training to save its state and end."""
        self._actor.end.remote()

    def wait(self) -> None:
        """Wait until the trial has ended, and free its resources."""
        try:
            self._ray.get(self._actor.wait.remote())
        except self._ray.exceptions.RayError:
            return
        self._ray.kill(self._actor)
