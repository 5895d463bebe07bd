"""Other libraries' names for our settings, as hints to users, and their settings files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from mqe.config import printable, type_hints
from mqe.extensions import Registry

# Names in HARL, rsl_rl, Stable-Baselines3, CleanRL and Isaac Lab, whose unit is ours
NAMES = {
    "lr": "algorithm.learning_rate",
    "actor_lr": "algorithm.learning_rate",
    "critic_lr": "algorithm.critic_learning_rate",
    "ppo_epoch": "algorithm.num_epochs",
    "n_epochs": "algorithm.num_epochs",
    "update_epochs": "algorithm.num_epochs",
    "num_learning_epochs": "algorithm.num_epochs",
    "critic_epoch": "algorithm.critic_num_epochs",
    "actor_num_mini_batch": "algorithm.num_minibatches",
    "critic_num_mini_batch": "algorithm.critic_num_minibatches",
    "num_mini_batches": "algorithm.num_minibatches",
    "gae_lambda": "algorithm.lam",
    "tau": "algorithm.polyak",
    "learning_starts": "algorithm.warmup",
    "clip_range": "algorithm.clip_param",
    "clip_coef": "algorithm.clip_param",
    "ent_coef": "algorithm.entropy_coef",
    "vf_coef": "algorithm.value_loss_coef",
    "episode_length": "runner.num_steps",
    "n_steps": "runner.num_steps",
    "num_steps_per_env": "runner.num_steps",
    "total_timesteps": "runner.num_env_steps",
    "hidden_dims": "network.hidden_sizes",
    "n_envs": "env.num_envs",
    "parallel_env_num": "env.num_envs",
    "algorithm": "algorithm.name",
    "env_name": "task.name",
    "max_queue_size": "runner.queue_blocks",
    "num_collectors": "runner.collectors",
    "log_dir": "logger.out_dir",
    "experiment_name": "logger.exp_name",
}
NOTHING = {
    "headless": "training never opens a window; leave it out",
    "use_tensorboard": "every run writes curves for TensorBoard; leave it out",
    "eval_interval": "to measure every checkpoint say mapush test RUN --all_checkpoints",
    "save_interval": "say --set runner.checkpoint_interval=ENV_STEPS (env steps, not rollouts)",
    "record_video": "to film a team say mapush play CHECKPOINT --record FILE",
    "warmup_episodes": "say --set algorithm.warmup=TRANSITIONS (transitions, not episodes)",
    "warmup_steps": "say --set algorithm.warmup=TRANSITIONS",
    "max_iterations": "say --num_env_steps ENV_STEPS (iterations x runner.num_steps x "
    "task.decision_period x env.num_envs)",
    "async": "for collectors say mapush train --set runner.collectors=N --max_wall_time 30s",
    "gpus": "for several GPUs say torchrun --nproc_per_node N -m harl_mapush.train",
    "sim_device": "say --device",
    "rl_device": "say --device",
    "checkpoint": "to continue a run say --resume RUN, to start from its networks --init_from RUN",
    "load_run": "say --resume RUN",
    "render": "to watch say mapush play CHECKPOINT",
    "cuda": "say --device cuda",
    "cuda_debug": "to find a fault on a GPU say CUDA_LAUNCH_BLOCKING=1 mapush doctor",
}


class OtherFlag(NamedTuple):
    """A flag from another library's training, also valid here under its original name."""

    keys: tuple[str, ...] = ()  # settings set by the flag, none if every run complies anyway
    value: Callable[[str], str] = str  # the value of these settings, as --set takes it


class SettingsFile(NamedTuple):
    """A kind of settings file as a layer in a run's settings."""

    help: str
    # Takes the settings of the run file, those of the command line, and the path. Returns the
    # former with the file's values, and notices for the user.
    apply: Callable[[Mapping[str, Any], Mapping[str, Any], str], tuple[dict[str, Any], list[str]]]


class SaidByCheckpoint(argparse.Action):
    """Keeps a note, which is written once all settings are resolved."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Keep the note."""
        note = (
            f"Note: {option_string} {printable(values)} has no effect here: the checkpoint has its "
            "own settings.\n"
        )
        namespace.notes = [*getattr(namespace, "notes", ()), note]


# The flag of a kind is its name: ``--load_config FILE`` for ``load_config``.
SETTINGS_FILES: Registry[SettingsFile] = Registry("file of settings")
# Flags by name without dashes. No help shows them.
TRAIN_FLAGS: Registry[OtherFlag] = Registry("flag")
for _name, _key in NAMES.items():
    _keys = (_key, "algorithm.critic_learning_rate") if _name == "lr" else (_key,)
    TRAIN_FLAGS.register(_name, OtherFlag(_keys))
TEST_FLAGS: Registry[Mapping[str, Any]] = Registry("flag")  # arguments of add_argument


def hint(name: str, classes: Mapping[str, type]) -> str | None:
    """Return a hint for ``name``, an unknown flag or dotted key, or None if no library has it.

    ``classes`` are the sections' classes, for a key with exactly this name.
    """
    word = name.lstrip("-").partition("=")[0].replace("-", "_").rpartition(".")[2]
    if word in NOTHING:
        return NOTHING[word]
    key = NAMES.get(word)
    if key is None and name.startswith("-"):
        key = next((path for path in dotted(classes) if path.rpartition(".")[2] == word), None)
    return None if key is None else f"say --set {key}=VALUE"


def dotted(classes: Mapping[str, type]) -> dict[str, Any]:
    """Return every setting's dataclass field, nested ones as well, by dotted name."""
    by_name: dict[str, Any] = {}
    for section, cls in classes.items():
        hints = type_hints(cls)
        for field in fields(cls):
            name = f"{section}.{field.name}"
            if is_dataclass(hints[field.name]):
                by_name |= dotted({name: hints[field.name]})
            elif field.init:
                by_name[name] = field
    return by_name
