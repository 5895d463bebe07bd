"""Teach one team the skills of several: ``mapush distil STUDENT OUT_DIR --lessons FILE``.

The student acts in every lesson's worlds and learns the lesson teacher's actions there (Ross,
Gordon and Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
Learning", 2011). No reward is needed, and a few million actions are enough. A lesson with the
student as teacher preserves its present skill.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.config import RunCfg
from harl_mapush.durations import parse_duration
from harl_mapush.learning.off_policy.q_networks import DeterministicActor, SquashedActor
from harl_mapush.process import library_lines, say
from harl_mapush.runs import checkpoint, durable, evaluation_worlds, run_folder
from harl_mapush.runs.policy import load_team
from mqe.config import ConfigError, dump_yaml, load_yaml, merge
from mqe.manifest import read_manifest, renew_manifest
from mqe.registry import make_env

PROGRAM = "mapush distil"
NUM_ENVS = 512  # of each lesson
MAX_WALL_TIME = "2m"
NUM_UPDATES = 12  # after each decision
BATCH_SIZE = 1024  # actions of each lesson in an update
LEARNING_RATE = 3e-4
MEMORY = 1500  # each lesson's stored decisions, for updates
NUM_DRAWN = 8  # of them in a batch
NOISE = 0.1  # standard deviation of the noise on the student's actions
AVERAGING = 0.01  # share of the newest weights in the written mean
WARMUP = 10  # decisions before the first update
INTERVAL = 50  # decisions between two lines
_KEYS = ("teacher", "env", "task")


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="One team that learns from other teams what to do in their worlds.",
        example="mapush distil pretrained:any taught --lessons lessons.yaml --max_wall_time 2m",
    )
    parser.add_argument("student", metavar="STUDENT", help="a checkpoint of hasac or its like")
    parser.add_argument("target", metavar="OUT_DIR", help="the checkpoint folder to write")
    parser.add_argument(
        "--lessons",
        metavar="FILE.yaml",
        required=True,
        help="list 'lessons' of teachers and of their worlds: teacher, env, task",
    )
    parser.add_argument(
        "--max_wall_time",
        dest="time",
        metavar="DURATION",
        default=MAX_WALL_TIME,
        help=f"time for learning, once the worlds are built (default: {MAX_WALL_TIME})",
    )
    config.add_import(parser)
    config.add_flags(parser, ("--num_envs", "--seed", "--device", "--sim"))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Teach a team. Return the exit code."""
    with library_lines(say):
        return config.exit_code(lambda: _main(make_parser().parse(argv)), PROGRAM)


def _main(arguments: Any) -> int:
    out = Path(arguments.target)
    if os.path.lexists(out):
        raise ConfigError(f"{out} exists; name another folder, or remove it")
    try:
        seconds = parse_duration(arguments.time)
    except ValueError as error:
        raise ConfigError(f"--max_wall_time: {error}") from None
    student = checkpoint.resolve(arguments.student)
    usual = {"env": {"num_envs": NUM_ENVS}, "task": {"spawn": "separated"}}
    over = merge(usual, config.flag_values(arguments))
    entries = read_lessons(Path(arguments.lessons))
    teachers = [checkpoint.resolve(entry["teacher"]) for entry in entries]
    settings = [evaluation_worlds.settings(student, _worlds(entry, over)) for entry in entries]

    torch.manual_seed(settings[0].runner.seed)
    lessons = []
    for cfg, teacher in zip(settings, teachers, strict=True):
        lessons.append(Lesson(cfg, student, teacher))
        say(f"{cfg.env.num_agents} robots in {cfg.env.num_envs} worlds, taught by {teacher.name}")
    weights = distil(lessons, seconds)
    for lesson in lessons:
        lesson.env.close()
    write(student, out, weights, [str(entry["teacher"]) for entry in entries])
    say(f"Done; the team is {out}.")
    return 0


def read_lessons(path: Path) -> list[dict[str, Any]]:
    """Return the lessons in a YAML file. Raises ConfigError if there are none, or invalid ones."""
    content = load_yaml(path)
    entries = content.get("lessons")
    if set(content) != {"lessons"} or not isinstance(entries, list) or not entries:
        raise ConfigError(
            f"--lessons {str(path)!r}: must have the one key 'lessons', a list of lessons, each "
            "with a teacher and settings of its worlds (env, task)"
        )
    for k, entry in enumerate(entries):
        is_lesson = isinstance(entry, Mapping) and set(entry) <= set(_KEYS)
        if not is_lesson or not isinstance(entry.get("teacher"), str):
            raise ConfigError(
                f"--lessons {str(path)!r}, lesson {k}: must have a teacher (a checkpoint or "
                f"pretrained:NAME) and may have env and task, not {entry!r}"
            )
    return entries


class Lesson:
    """A teacher's worlds, with the student's observations and the teacher's actions there."""

    def __init__(self, cfg: RunCfg, student: Path, teacher: Path) -> None:
        """Build the worlds ``cfg``.

        Raises ConfigError for teams unable to act in them, and for a student without trainable
        actors. The library's log warns if the teacher did not learn in them.
        """
        self.env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
        self.teacher = load_team(cfg, teacher, self.env)
        acting = cfg.algorithm.for_acting()
        spec = self.env.spec
        algorithm = make_algorithm(acting, cfg.network, spec, self.env.device, cfg.runner.seed)
        networks = algorithm.networks
        num_stored = checkpoint.read_config(student)["env"]["num_agents"]
        stored = range(min(num_stored, spec.num_agents))
        checkpoint.load_actors(
            student, {f"actor_agent{i}": networks[f"actor_agent{i}"] for i in stored}
        )
        actors = [networks[f"actor_agent{i}"] for i in range(spec.num_agents)]
        kinds = (SquashedActor, DeterministicActor)
        if not all(isinstance(actor, kinds) for actor in actors):
            raise ConfigError(
                f"checkpoint {student}: only teams of off-policy algorithms can be students; train "
                "one with mapush train --preset any"
            )
        self.actors = actors
        self.obs = self.env.reset()[0]
        # Observations, and the teacher's actions there.
        self.memory: deque[tuple[Tensor, Tensor]] = deque(maxlen=MEMORY)

    def use(self, actors: Sequence[nn.Module]) -> None:
        """Act with the student's networks ``actors`` from another lesson."""
        self.actors = [actors[min(agent, len(actors) - 1)] for agent in range(len(self.actors))]

    def step(self) -> None:
        """Let the student decide in every world, and store the teacher's actions."""
        with torch.no_grad():
            teacher_actions = self.teacher(self.obs)
            actions = self._act(self.obs)
        self.memory.append((self.obs.clone(), teacher_actions.clone()))
        noisy = actions + NOISE * torch.randn_like(actions)
        self.obs = self.env.step(noisy.clamp(-1.0, 1.0)).obs

    def loss(self) -> Tensor:
        """Return the mean squared difference () from the teacher's actions in a batch."""
        decisions = torch.randint(len(self.memory), (NUM_DRAWN,)).tolist()
        obs = torch.cat([self.memory[k][0] for k in decisions])
        teacher_actions = torch.cat([self.memory[k][1] for k in decisions])
        num_rows = math.ceil(BATCH_SIZE / obs.shape[1])
        rows = torch.randint(len(obs), (num_rows,), device=obs.device)
        return (self._act(obs[rows]) - teacher_actions[rows]).square().mean()

    def _act(self, obs: Tensor) -> Tensor:
        """Return the student's actions (N, A, U) for obs (N, A, O)."""
        actions = [actor(obs[:, agent]) for agent, actor in enumerate(self.actors)]
        return torch.stack(actions, dim=1)


def distil(lessons: Sequence[Lesson], seconds: float) -> list[dict[str, Tensor]]:
    """Teach the first lesson's student for ``seconds``. Return its actors' mean weights over the
    last updates.

    The learning rate falls to zero over the second half. Raises ConfigError if the time ends before
    the first update.
    """
    actors = lessons[0].actors
    for lesson in lessons[1:]:
        lesson.use(actors)
    networks = nn.ModuleList(dict.fromkeys(actors))  # a shared network occurs once
    means = [{k: v.clone() for k, v in actor.state_dict().items()} for actor in networks]
    optimizer = torch.optim.Adam(networks.parameters(), lr=LEARNING_RATE)
    begun = time.monotonic()
    decisions = 0
    while (passed := time.monotonic() - begun) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, 2.0 - 2.0 * passed / seconds)
        for lesson in lessons:
            lesson.step()
        decisions += 1
        if decisions < WARMUP:
            continue
        for _ in range(NUM_UPDATES):
            losses = torch.stack([lesson.loss() for lesson in lessons])
            optimizer.zero_grad()
            losses.sum().backward()
            optimizer.step()
        for mean, network in zip(means, networks, strict=True):
            _follow(mean, network.state_dict())
        if decisions % INTERVAL == 0:
            differences = "  ".join(f"{loss:.4f}" for loss in losses.detach().tolist())
            say(f"{passed:.0f} s, {decisions} decisions, squared differences {differences}")
    if decisions < WARMUP:
        raise ConfigError(
            f"--max_wall_time={seconds}s: it ended after {decisions} of the {WARMUP} decisions "
            "before the first update; say more, or take fewer worlds (--num_envs)"
        )
    return means


def write(
    student: Path, out: Path, weights: Sequence[dict[str, Tensor]], teachers: Sequence[str]
) -> None:
    """Write a checkpoint folder with the student's settings and the actors' ``weights``."""
    settings = checkpoint.read_config(student)
    manifest = read_manifest(student)
    more: dict[str, Any] = {"taught_by": list(teachers)}
    if "gait_sha256" in manifest:
        more["gait_sha256"] = manifest["gait_sha256"]
    if len(weights) == 1:
        more[checkpoint.SHARED_ACTOR] = True
    out.parent.mkdir(parents=True, exist_ok=True)
    with durable.new_folder(out) as partial:
        if os.path.lexists(out):
            raise ConfigError(f"{out} came into being during the learning; nothing was written")
        (partial / run_folder.CONFIG).write_text(dump_yaml(settings), encoding="utf-8")
        for agent, state in enumerate(weights):
            torch.save(
                {key: value.cpu() for key, value in state.items()},
                partial / checkpoint.actor_file(agent),
            )
        renew_manifest(partial, more)


def _follow(mean: dict[str, Tensor], newest: Mapping[str, Tensor]) -> None:
    """Move mean weights towards the newest ones. Update counts are copied."""
    for key, value in newest.items():
        if value.is_floating_point():
            mean[key].lerp_(value, AVERAGING)
        else:
            mean[key].copy_(value)


def _worlds(entry: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings ``over``, changed by a lesson's."""
    return merge(over, {section: entry.get(section) or {} for section in ("env", "task")})


if __name__ == "__main__":
    sys.exit(main())
