"""Worlds as a TorchRL environment: tensors stay on the simulator's device."""

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded  # pyright: ignore[reportMissingImports]
from torchrl.envs import EnvBase  # pyright: ignore[reportMissingImports]

from harl_mapush.clients.worlds import ClientEnv, Worlds
from mqe.config import ConfigError

GROUP = "agents"


class TorchRLEnv(EnvBase):
    """N worlds, batch size (N,), with one group of agents.

    The group has ``observation`` (N, A, O), ``action`` (N, A, U) and ``reward`` (N, A, 1). At the
    root are the critic's ``state``, (N, S), or (N, A, S) within the group if each agent has its
    own, ``done``, ``terminated`` and ``truncated`` (N, 1), and ``broken`` (N, 1). A broken world
    counts as truncated. Shorter observations end in zeros. ``next`` has the last observation of an
    episode, and ``reset`` begins the next one under the mask ``_reset``.
    """

    def __init__(self, worlds: Worlds, device: torch.device | str | None = None) -> None:
        """Build the worlds. Any ``device`` but the simulator's is an error."""
        client = ClientEnv(worlds)
        if device is not None and str(device).partition(":")[0] != client.device.type:
            client.close()
            raise ConfigError(
                f"device: the worlds are on {client.device}, not {device}; set sim.device, or move "
                "the results with torchrl's DeviceCastTransform"
            )
        env = client.env
        super().__init__(device=client.device, batch_size=torch.Size((env.num_envs,)))
        self.client = client
        self.group_map = {GROUP: list(client.agents)}
        self.max_decisions = env.max_episode_length // env.decision_period
        self._make_specs()

    def render(self, mode: str = "rgb_array") -> Any:
        """Return a picture (height, width, 3) of the first world."""
        return self.client.render()

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Free the simulator and the renderer."""
        self.client.close()
        super().close(raise_if_closed=raise_if_closed)

    def _make_specs(self) -> None:
        """Set the specs of one world. TorchRL repeats them for the batch."""
        spec = self.client.env.spec
        team = torch.Size((spec.num_agents,))

        def unbounded(*shape: int) -> Unbounded:
            return Unbounded(torch.Size(shape), device=self.device)

        flag = Categorical(2, shape=torch.Size((1,)), dtype=torch.bool, device=self.device)
        observed: dict[str, Any] = {"observation": unbounded(*team, spec.obs_size)}
        at_root: dict[str, Any] = {"broken": flag.clone()}
        if spec.state_type == "FP":
            observed["state"] = unbounded(*team, spec.state_size)
        else:
            at_root["state"] = unbounded(spec.state_size)
        action = Bounded(-1.0, 1.0, shape=torch.Size((*team, spec.action_size)), device=self.device)

        self.full_observation_spec_unbatched = Composite(
            {GROUP: Composite(observed, shape=team), **at_root}, device=self.device
        )
        self.full_action_spec_unbatched = Composite(
            {GROUP: Composite({"action": action}, shape=team)}, device=self.device
        )
        self.full_reward_spec_unbatched = Composite(
            {GROUP: Composite({"reward": unbounded(*team, 1)}, shape=team)}, device=self.device
        )
        self.full_done_spec_unbatched = Composite(
            {name: flag.clone() for name in ("done", "terminated", "truncated")}, device=self.device
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        obs, state = self.client.reset(mask=None if mask is None else mask.reshape(-1))
        return self._results(obs, state, torch.ones_like(obs[:, 0, 0], dtype=torch.bool))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        step = self.client.step(tensordict[GROUP, "action"])
        results = self._results(step.final_obs, step.final_state, step.valid)
        results.set((GROUP, "reward"), step.reward.unsqueeze(-1))
        flags = {
            "done": step.done,
            "terminated": step.terminated.all(dim=1),
            "truncated": step.was_cut_off,
        }
        for name, flag in flags.items():
            results.set(name, flag.unsqueeze(-1))
        return results

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.client.use_seed(seed)

    def _results(self, obs: Tensor, state: Tensor, valid: Tensor) -> TensorDict:
        team = TensorDict({"observation": obs}, batch_size=obs.shape[:2], device=self.device)
        results = TensorDict(
            {GROUP: team, "broken": ~valid.unsqueeze(-1)},
            batch_size=self.batch_size,
            device=self.device,
        )
        if self.client.env.spec.state_type == "FP":
            results.set((GROUP, "state"), state)
        else:
            results.set("state", state)
        return results
