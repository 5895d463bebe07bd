"""Differences between worlds: each setting acts on both simulators, and defaults act on none."""

# pyright: reportAttributeAccessIssue=false, reportOptionalOperand=false
# pyright: reportOptionalMemberAccess=false

import dataclasses
import functools
import math
from collections.abc import Iterator

import mujoco
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mqe.config import ConfigError, build
from mqe.env.environment import MultiAgentEnv
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
from mqe.tasks.walking import WalkingCfg
from mqe.world import randomization
from mqe.world.geometry import wrap_to_pi
from mqe.world.objects import OBJECTS
from mqe.world.randomization import IDLE_DISTANCE, RandomizationCfg
from mqe.world.scene import STEP_DT, read_state, sliding_forces

CALM = RandomizationCfg()
# A value that shows within a second, by setting; one setting needs another beside it.
SHOWN = {
    "object_mass": {"object_mass": 2.0},
    "object_friction": {"object_friction": 0.5},
    "ground_friction": {"ground_friction": (0.5, 0.6)},
    "payload": {"payload": 3.0},
    "motor_strength": {"motor_strength": 0.7},
    "weak_robot": {"weak_robot": 0.5},
    "slope": {"slope": 0.1},
    "place_bias": {"place_bias": 0.1},
    "heading_bias": {"heading_bias": 0.1},
    "goal_speed": {"goal_speed": 0.2},
    "action_latency": {"action_latency": 0.04},
    "latency_jitter": {"latency_jitter": 0.02},
    "command_latency": {"command_latency": 0.1},
    "observation_noise": {"observation_noise": 0.05},
    "kick_speed": {"kick_speed": 1.0, "kick_interval": 0.1},
    "kick_interval": {"kick_speed": 1.0, "kick_interval": 0.2},
    "freeze_time": {"freeze_time": 2.0},
    "lost_robots": {"lost_robots": ("dead",)},
    "lost_share": {"lost_robots": ("late",), "lost_share": 0.5, "lost_time": 2.0},
    "lost_time": {"lost_robots": ("late",), "lost_time": 2.0},
    "absent_robots": {"absent_robots": (1, 1)},
    "robot_force": {"absent_robots": (1, 1), "robot_force": 1.0},
    "fewest_share": {"absent_robots": (0, 1), "fewest_share": 1.0},
    "fewest_rise": {"absent_robots": (0, 1), "fewest_share": 1.0, "fewest_rise": 5},
}


def env_with(
    randomization: RandomizationCfg,
    num_envs: int = 3,
    sim: str = "mujoco",
    num_agents: int = 2,
    **task,
) -> MultiAgentEnv:
    cfg = PushCfg(**{"episode_length_s": 2.0, **task})
    return make_env(
        EnvCfg(num_envs, num_agents, randomize=randomization),
        SimCfg(name=sim, device="cpu", num_threads=1),
        cfg,
        seed=3,
    )


def run(env: MultiAgentEnv, num_steps: int = 40) -> Iterator[torch.Tensor]:
    """Yield the agents' observations at each decision as they walk to and fro and a force acts on
    the object.
    """
    yield env.reset()[0]
    ahead = torch.ones(env.num_envs, 2, 3) * torch.tensor([1.0, 0.0, 0.0])
    for k in range(num_steps):
        env.sim.data.xfrc_applied[:, env.scene.model.body("object").id, 0] = 30.0
        yield env.step(ahead if k % 8 < 4 else -ahead).obs


def test_every_setting_is_tried_here():
    assert set(SHOWN) == {field.name for field in dataclasses.fields(RandomizationCfg)}


# The other settings act above the simulator.
OF_THE_SIMULATOR = (
    "object_mass",
    "object_friction",
    "ground_friction",
    "payload",
    "motor_strength",
    "kick_speed",
    "lost_robots",
)
QUICK = ("object_mass", "ground_friction", "kick_speed")


@pytest.mark.parametrize(
    ("name", "sim"),
    [
        *((name, "mujoco") for name in SHOWN),
        *(
            pytest.param(name, "warp", marks=[] if name in QUICK else pytest.mark.slow)
            for name in OF_THE_SIMULATOR
        ),
    ],
)
def test_a_setting_changes_what_happens(name, sim):
    if sim == "warp":
        pytest.importorskip("mujoco_warp")
    # On a CPU, steps of Warp's are dear; in a short episode one agent freezes soon.
    seconds, num_steps = (2.0, 30) if sim == "mujoco" else (0.4, 6)
    env = env_with(RandomizationCfg(**SHOWN[name]), 2, sim, episode_length_s=seconds)
    calm = what_agents_see(sim, seconds, num_steps)
    pairs = zip(calm, run(env, num_steps), strict=True)
    assert any(not torch.equal(plain, changed) for plain, changed in pairs)
    env.close()


@functools.cache
def what_agents_see(sim: str, seconds: float, num_steps: int) -> list[torch.Tensor]:
    """Return the observations of the calm world."""
    env = env_with(CALM, 2, sim, episode_length_s=seconds)
    seen = list(run(env, num_steps))
    env.close()
    return seen


def fields_of(env: MultiAgentEnv, world: int, name: str) -> torch.Tensor:
    return torch.as_tensor(env.sim._batch.expanded(name)[world])


def test_masses_frictions_and_motors_are_scaled_as_asked_for():
    env = env_with(
        RandomizationCfg(
            object_mass=3.0,
            payload=1.2,
            motor_strength=0.5,
            ground_friction=0.5,
            object_friction=2.0,
        )
    )
    plain = env_with(CALM)
    model = env.scene.model
    obj = env.scene.model.body("object").id
    for world in range(3):
        assert float(fields_of(env, world, "body_mass")[obj]) == pytest.approx(
            3.0 * OBJECTS["cuboid"].mass
        )
        inertia = fields_of(env, world, "body_inertia")[obj] / torch.as_tensor(
            model.body_inertia[obj]
        )
        assert inertia.tolist() == pytest.approx([3.0] * 3)
        assert fields_of(env, world, "body_mass")[env.scene.trunk_bodies].tolist() == pytest.approx(
            [6.001] * 2
        )
        # What a solver scales its impedance by follows: three times the mass, a third of the
        # inverse weight.
        weight = fields_of(env, world, "body_invweight0")[obj, 0] / model.body_invweight0[obj, 0]
        assert float(weight) == pytest.approx(1.0 / 3.0)
        floor = env.scene.model.geom("floor").id
        assert float(fields_of(env, world, "geom_friction")[floor, 0]) == pytest.approx(0.5 * 0.55)
        ratio = (
            fields_of(env, world, "pair_friction")[:, :2]
            / fields_of(plain, world, "pair_friction")[:, :2]
        )
        # Half of the floor's, twice the object's.
        assert ratio.unique().tolist() == pytest.approx([1.0])
        assert fields_of(env, world, "actuator_gainprm")[:, 0].unique().tolist() == [9.5]
        assert fields_of(env, world, "actuator_biasprm")[:, 1:3].unique(dim=0).tolist() == [
            [-9.5, -0.4]
        ]
        assert fields_of(env, world, "actuator_forcerange")[:3, 1].tolist() == [10.0, 10.0, 11.0]


def test_a_stronger_dc_motor_has_less_resistance_and_the_same_no_load_speed(walking):
    env = make_env(
        EnvCfg(2, 1, model="physical", randomize=RandomizationCfg(motor_strength=0.5)),
        SimCfg(name="mujoco", device="cpu", num_threads=1),
        WalkingCfg(),
        seed=3,
    )
    model = env.scene.model
    assert (model.actuator_gaintype == mujoco.mjtGain.mjGAIN_DCMOTOR).all()
    made = fields_of(env, 1, "actuator_gainprm")
    ratio = made / torch.as_tensor(model.actuator_gainprm)
    # Resistance, stiffness and damping.
    for gain, expected in ((0, 2.0), (4, 0.5), (6, 0.5)):
        assert ratio[:, gain].tolist() == pytest.approx([expected] * model.nu)
    others = [k for k in range(made.shape[1]) if k not in (0, 4, 6)]
    assert torch.equal(made[:, others], torch.as_tensor(model.actuator_gainprm).to(made)[:, others])
    env.close()


def test_worlds_episodes_steps_and_noise_have_streams_of_their_own():
    streams = (randomization._WORLD, randomization._EPISODE, randomization._STEP)
    assert len({*streams, randomization._NOISE}) == 4


@pytest.mark.parametrize("share", [-0.5, 1.5])
def test_a_share_of_lost_robots_is_between_0_and_1(share):
    with pytest.raises(ConfigError, match="lost_share: must be"):
        build(RandomizationCfg, {"lost_share": share}, "env.randomize")


def test_of_a_range_every_world_draws_its_own_whatever_runs_beside_it():
    randomization = RandomizationCfg(object_mass=(0.5, 3.0))
    few = env_with(randomization, 3)
    many = env_with(randomization, 9)
    body = few.scene.model.body("object").id
    masses = [
        [float(fields_of(env, w, "body_mass")[body]) for w in range(env.num_envs)]
        for env in (few, many)
    ]
    assert masses[0] == masses[1][:3]
    assert len(set(masses[1])) == 9
    assert all(2.0 <= mass <= 12.0 for mass in masses[1])


@pytest.mark.parametrize("sim", ["mujoco", pytest.param("warp", marks=pytest.mark.slow)])
def test_a_heavier_object_is_harder_to_move_on_either_simulator(sim):
    if sim == "warp":
        pytest.importorskip("mujoco_warp")
    speeds = []
    for mass in (1.0, 3.0):
        env = env_with(RandomizationCfg(object_mass=mass), 2, sim)
        env.reset()
        body = env.scene.model.body("object").id
        env.sim.data.xfrc_applied[:, body, 0] = 60.0
        env.sim.step(20)
        speeds.append(float(env.sim.data.qvel[0, env.scene.robot_qvel]))
        env.close()
    friction = 0.33 * 9.81
    # 60 N on 4 kg and on 12 kg, less friction, for 0.1 s; the object tips and lifts a little on the
    # way.
    assert speeds[0] == pytest.approx(0.1 * (60.0 / 4.0 - friction), rel=0.2)
    assert speeds[1] == pytest.approx(0.1 * (60.0 / 12.0 - friction), rel=0.35)


def test_noise_has_the_size_that_is_asked_for_and_spares_the_critic():
    calm = env_with(CALM, 200)
    noisy = env_with(RandomizationCfg(observation_noise=0.05), 200)
    (clean, state) = calm.reset()
    (noisy_obs, same) = noisy.reset()
    noise = noisy_obs - clean
    assert torch.equal(state, same)
    assert float(noise.std()) == pytest.approx(0.05, rel=0.05)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.003)


def test_a_bias_moves_the_observed_object_for_a_whole_episode_and_spares_the_critic():
    calm = env_with(CALM, 20)
    biased = env_with(RandomizationCfg(place_bias=0.1, heading_bias=(-0.2, 0.2)), 20)
    (clean, state) = calm.reset()
    (observed, same) = biased.reset()
    assert torch.equal(state, same)
    assert torch.equal(calm.state.rows, biased.state.rows)
    error = observed - clean
    assert error[..., 2:4].norm(dim=-1).flatten().tolist() == pytest.approx([0.1] * 40, abs=1e-5)
    assert not error[..., :2].any()
    turned = torch.atan2(*observed[..., 4:6].unbind(-1)) - torch.atan2(*clean[..., 4:6].unbind(-1))
    turned = wrap_to_pi(turned)
    assert torch.allclose(turned[:, 0], turned[:, 1], atol=1e-5)
    assert 0.1 < float(turned.abs().max()) <= 0.2
    assert float(turned.min()) < 0.0 < float(turned.max())
    zeros = torch.zeros(20, 2, 3)
    later = biased.step(zeros).obs - calm.step(zeros).obs
    torch.testing.assert_close(later[..., 2:4].norm(dim=-1), error[..., 2:4].norm(dim=-1))


def test_an_episodes_last_state_has_the_bias_of_its_own_episode():
    calm = env_with(CALM, 6, episode_length_s=0.2)
    biased = env_with(RandomizationCfg(heading_bias=(-0.2, 0.2)), 6, episode_length_s=0.2)

    def bias(observed: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
        heading = [torch.atan2(*obs[..., 4:6].unbind(-1)) for obs in (observed, clean)]
        return wrap_to_pi(heading[0] - heading[1])

    first = bias(biased.reset()[0], calm.reset()[0])
    for _ in range(10):
        step, true = (env.step(torch.zeros(6, 2, 3)) for env in (biased, calm))
        if bool(step.truncated.all()):
            break
    assert bool(step.truncated.all())
    torch.testing.assert_close(bias(step.final_obs, true.final_obs), first, atol=1e-5, rtol=0.0)
    assert not torch.allclose(bias(step.obs, true.obs), first, atol=1e-3)


class Operators(TorchDispatchMode):
    """Collects the names of torch's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def test_a_bias_copies_no_list_of_columns_to_the_device():
    # A CUDA graph cannot capture such a copy.
    env = env_with(RandomizationCfg(place_bias=0.1, heading_bias=0.1), 2)
    env.reset()
    with Operators() as used:
        env.randomization.biased(env.state)
    assert "aten::copy_" in used.names
    assert not [name for name in used.names if "index" in name]


def test_a_goal_moves_at_its_speed_and_each_episode_in_its_own_direction():
    env = env_with(RandomizationCfg(goal_speed=0.2), 6, episode_length_s=1.0)
    env.reset()
    ways = []
    for _ in range(2):
        start = env.state.goal_pos.clone()
        for _ in range(5):
            env.step(torch.zeros(6, 2, 3))
        ways.append(env.state.goal_pos - start)
        env.restart(torch.ones(6, dtype=torch.bool))
    seconds = 5 * env.decision_period * STEP_DT
    for way in ways:
        assert way.norm(dim=1).tolist() == pytest.approx([0.2 * seconds] * 6, rel=1e-3)
    assert not torch.allclose(ways[0], ways[1], atol=1e-3)

    start = env.state.goal_pos.clone()
    env.pause(torch.arange(6) < 2)
    env.step(torch.zeros(6, 2, 3))
    has_moved = (env.state.goal_pos != start).any(dim=1)
    assert has_moved.tolist() == [False] * 2 + [True] * 4
    env.close()


def test_one_robot_of_each_world_is_weak():
    env = env_with(RandomizationCfg(weak_robot=0.5, motor_strength=0.8), 8)
    limits = torch.stack([fields_of(env, w, "actuator_forcerange") for w in range(8)])
    factors = limits[..., 1] / torch.as_tensor(env.scene.model.actuator_forcerange[:, 1])
    by_robot = factors.unflatten(1, (2, 12))
    assert (by_robot == by_robot[..., :1]).all()
    pairs = [tuple(round(x, 6) for x in row) for row in by_robot[..., 0].tolist()]
    assert set(pairs) == {(0.4, 0.8), (0.8, 0.4)}


@pytest.mark.parametrize("latency", [0.06, (0.0, 0.12)])
def test_late_commands_are_those_of_a_while_ago(latency):
    env = env_with(RandomizationCfg(command_latency=latency), 6)
    env.reset()
    held = []
    for k in range(9):
        env.step(torch.full((6, 2, 3), 0.1 * k))
        held.append(env.task._controller._command[:, 0, 0].clone())
    late = (env.randomization._draws["command_latency"] / STEP_DT).round()
    by_hand = (0.05 * (torch.arange(9) - late)).clamp(min=0.0).T
    torch.testing.assert_close(torch.stack(held), by_hand)


def test_any_latency_of_commands_can_be_had():
    # 4.5 control steps: 4 in double precision, 5 in single.
    env = env_with(RandomizationCfg(command_latency=0.09), 1)
    env.reset()
    for _ in range(8):
        assert bool(env.step(torch.ones(1, 2, 3)).valid.all())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"object_mass": 2.0}, "object_mass: this task has no object; leave the setting at 1"),
        ({"goal_speed": 0.1}, "goal_speed: this task has no object; leave the setting at 0"),
        ({"lost_robots": ("idle",)}, "lost_robots: this task has no object to stand beside"),
    ],
)
def test_there_is_nothing_to_vary_of_an_object_that_is_not_there(walking, setting, message):
    with pytest.raises(ConfigError, match=f"env.randomize.{message}"):
        make_env(
            EnvCfg(2, randomize=RandomizationCfg(**setting)),
            SimCfg(device="cpu"),
            WalkingCfg(),
            seed=0,
        )


def test_one_agent_freezes_for_a_while():
    env = env_with(RandomizationCfg(freeze_time=0.2), 20, episode_length_s=0.8)
    env.reset()
    stands = []
    for _ in range(39):
        env.step(torch.ones(20, 2, 3))
        stands.append((env.task._controller._command == 0.0).all(dim=2))
    stands = torch.stack(stands)  # (T, N, A)
    assert (stands.sum(dim=2) <= 1).all()
    assert (stands.sum(dim=(0, 2)) == round(0.2 / STEP_DT)).all()
    assert stands.any(dim=0).sum(dim=0).min() > 2  # either agent, now and then


def test_a_dead_robot_lies_there_and_its_fall_ends_nothing():
    env = env_with(RandomizationCfg(lost_robots=("dead",), lost_time=0.5), 12, close_share=0.0)
    env.reset()
    heights = []
    for _ in range(60):
        step = env.step(torch.zeros(12, 2, 3))
        assert not step.terminated.any()
        heights.append(env.state.robot_pos[..., 2].clone())
    heights = torch.stack(heights)
    is_dead = env.randomization.is_dead
    assert (is_dead.sum(dim=1) == 1).all()
    assert 2 < int(is_dead[:, 0].sum()) < 10  # either robot
    assert (heights[24][is_dead] > 0.22).all()
    assert (heights[-1][is_dead] < 0.15).all()
    assert (heights[-1][~is_dead] > 0.22).all()
    env.close()


def test_a_teammate_that_falls_ends_the_episode_as_before():
    env = env_with(RandomizationCfg(lost_robots=("dead",)), 4)
    env.reset()
    env.step(torch.zeros(4, 2, 3))
    for i in range(2):  # every robot on its back
        env.sim.data.qpos[:, 19 * i + 3 : 19 * i + 7] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    features = env.task.step_features(read_state(env.sim, env.scene), env.state)
    assert features.is_lost[0].all()
    env.randomization.is_out.fill_(True)
    features = env.task.step_features(read_state(env.sim, env.scene), env.state)
    assert not features.is_lost[0].any()
    env.close()


def test_an_idle_robot_stands_on_the_far_side_and_its_mates_observe_it():
    idle = RandomizationCfg(lost_robots=("idle",))
    env = env_with(idle, 12, observation="sets", spawn="separated")
    obs = env.reset()[0]
    is_idle = env.randomization._lost["idle"]
    assert (is_idle.sum(dim=1) == 1).all()
    offset = env.state.robot_pos[is_idle][:, :2] - env.state.object_pos[:, :2]
    assert offset.norm(dim=1).tolist() == pytest.approx([IDLE_DISTANCE] * 12, abs=1e-4)
    along = (offset * env.state.goal_direction).sum(dim=1) / IDLE_DISTANCE
    assert along.tolist() == pytest.approx([math.cos(math.pi / 4)] * 12, abs=1e-4)
    for _ in range(3):
        obs = env.step(torch.ones(12, 2, 3)).obs
    assert bool((obs[..., env.spec.presence] == 1.0).all())
    assert torch.equal(env.randomization.is_out, is_idle)  # nobody waits for its push
    commands = env.task._controller._command
    assert not commands[is_idle].any()
    assert commands[~is_idle].all()
    env.close()


def test_a_robot_that_is_out_is_paid_the_mean_of_the_others():
    env = env_with(RandomizationCfg(lost_robots=("absent", "dead")), 12)
    env.reset()
    rewards = env.step(torch.ones(12, 2, 3)).reward
    assert (env.randomization.is_out.sum(dim=1) == 1).all()
    assert torch.equal(rewards[:, 0], rewards[:, 1])
    env.randomization.is_out.fill_(False)
    state = env.state
    earned = env.task.evaluate(state, state).rewards.sum(dim=0)
    assert (earned[:, 0] != earned[:, 1]).all()
    env.randomization.is_out.fill_(True)
    assert not env.task.evaluate(state, state).rewards.any()  # nobody is there
    env.close()


def test_an_absent_robot_stands_far_away_and_a_late_one_at_its_place():
    absent = env_with(RandomizationCfg(lost_robots=("absent",)), 12)
    plain = env_with(CALM, 12)
    for env in (absent, plain):
        env.reset()
    distance = absent.state.robot_pos[..., :2].norm(dim=-1)
    is_far = distance > 9.0
    assert (is_far.sum(dim=1) == 1).all()
    there = ~is_far.unsqueeze(-1)
    assert torch.equal(
        torch.where(there, absent.state.robot_pos, 0.0),
        torch.where(there, plain.state.robot_pos, 0.0),
    )
    absent.step(torch.ones(12, 2, 3))
    assert torch.equal((absent.task._controller._command == 0.0).all(dim=2), is_far)

    late = env_with(RandomizationCfg(lost_robots=("late",), lost_time=0.4), 12)
    late.reset()
    assert torch.equal(late.state.robot_pos, plain.state.robot_pos)
    stands = []
    for _ in range(40):
        late.step(torch.ones(12, 2, 3))
        stands.append((late.task._controller._command == 0.0).all(dim=2))
    stands = torch.stack(stands)
    assert (stands.sum(dim=(0, 2)) == round(0.4 / STEP_DT)).all()
    assert not stands[20:].any()
    assert not late.randomization.is_dead.any()


def test_robots_are_lost_in_the_share_of_episodes_that_is_asked_for():
    cfg = RandomizationCfg(lost_robots=("absent", "dead"), lost_share=0.5)
    env = env_with(cfg, 200)
    env.reset()
    env.step(torch.zeros(200, 2, 3))
    is_far = env.state.robot_pos[..., :2].norm(dim=-1) > 9.0
    dead = env.randomization.is_dead
    assert not (is_far.any(dim=1) & dead.any(dim=1)).any()
    assert int(is_far.sum()) == pytest.approx(50, abs=20)
    assert int(dead.sum()) == pytest.approx(50, abs=20)


def test_any_robots_of_a_team_stay_away_as_many_as_were_drawn():
    cfg = RandomizationCfg(absent_robots=(1, 3))
    env = env_with(cfg, 150, num_agents=4, observation="sets")
    env.reset()
    is_far = env.state.robot_pos[..., :2].norm(dim=-1) > 9.0
    counts = torch.bincount(is_far.sum(dim=1), minlength=5).tolist()
    assert counts[0] == counts[4] == 0
    assert counts[1:4] == pytest.approx([50, 50, 50], abs=20)
    assert is_far.sum(dim=0).tolist() == pytest.approx([75] * 4, abs=25)
    assert torch.equal(env.randomization.is_away, is_far)
    env.step(torch.ones(150, 4, 3))
    assert torch.equal(env.randomization.is_out, is_far)
    assert torch.equal(env.task._roster.takes_part == 0.0, is_far)
    assert torch.equal((env.task._controller._command == 0.0).all(dim=2), is_far)


def test_as_many_robots_come_as_the_object_needs():
    cfg = RandomizationCfg(object_mass=(0.3, 1.3), absent_robots=(0, 3), robot_force=50.0)
    env = env_with(cfg, 150, num_agents=4, observation="sets", object_mass=31.0)
    env.reset()
    present = (~env.randomization.is_away).sum(dim=1)
    needed = torch.ceil(env.randomization.needed_force / 50.0)
    assert set(needed.tolist()) == {1.0, 2.0, 3.0}
    assert (present >= needed).all()
    for count in (1, 2, 3):
        drawn = torch.bincount(present[needed == count], minlength=5)[count:]
        assert drawn.min() >= 0.5 * drawn.float().mean()


FEWEST = {"absent_robots": (0, 3), "robot_force": 50.0}


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, [50, 50, 50]), (0.5, [100, 25, 25]), (1.0, [150, 0, 0])]
)
def test_in_a_share_of_episodes_the_fewest_robots_come(share, expected):
    """The object takes two of four robots. The share may rise over a world's first episodes."""
    cfg = RandomizationCfg(**FEWEST, fewest_share=share)
    env = env_with(cfg, 150, num_agents=4, observation="sets", object_mass="90 N")
    env.reset()
    present = (~env.randomization.is_away).sum(dim=1)
    counts = torch.bincount(present, minlength=5).tolist()
    assert counts == pytest.approx([0, 0, *expected], abs=20 if share < 1.0 else 0)
    rising = RandomizationCfg(**FEWEST, fewest_share=1.0, fewest_rise=4)
    drawn = torch.full((150, 1), 3.9)  # of 0 to 4: the last number of any choice
    drawn[:50] = 0.9
    env.randomization.cfg = rising
    env.randomization._count_absent(drawn, torch.tensor([0, 1, 2] * 50))
    assert drawn[:50].flatten().tolist() == ([0.0, 2.0, 2.0] * 17)[:50]
    assert drawn[50:].eq(2.0).all()


def test_the_force_that_slides_an_object_is_of_its_mass_and_friction():
    env = env_with(RandomizationCfg(ground_friction=0.5), object_mass=18.0)
    fields = {"pair_friction": torch.as_tensor(env.scene.model.pair_friction) * torch.ones(2, 1, 1)}
    fields["pair_friction"][:] = torch.tensor([0.3, 0.5]).view(2, 1, 1)
    assert sliding_forces(env.scene, fields).tolist() == pytest.approx([52.974, 88.29])
    floor = env.scene.model.pair("object/0-floor").id
    sliding_force = 9.81 * 18.0 * env.scene.model.pair_friction[floor, 0]
    assert env.randomization.needed_force.tolist() == pytest.approx(
        [0.5 * sliding_force] * 3, rel=0.2
    )


def test_one_robot_of_a_team_has_to_come():
    with pytest.raises(ConfigError, match=r"of 2 robots 2 cannot stay away; say \[1, 1\]"):
        env_with(RandomizationCfg(absent_robots=(1, 2)))


@pytest.mark.parametrize(("interval", "kicks"), [(0.1, [5]), (0.02, [1, 2, 3, 4, 5])])
def test_kicks_come_at_their_interval_and_at_their_speed(interval, kicks):
    calm = env_with(CALM, 4)
    kicked = env_with(RandomizationCfg(kick_speed=0.5, kick_interval=interval), 4)
    for env in (calm, kicked):
        env.reset()
    for k in range(6):
        velocities = []
        for env in (calm, kicked):
            before = env.state.robot_linvel.clone()
            env.step(torch.zeros(4, 2, 3))
            velocities.append((env.state.robot_linvel - before)[..., :2])
        gained = (velocities[1] - velocities[0]).norm(dim=2)
        assert bool((gained > 0.2).all()) is (k in kicks)


def test_a_resumed_environment_continues_to_the_bit():
    randomization = RandomizationCfg(
        action_latency=(0.0, 0.04),
        latency_jitter=0.01,
        command_latency=(0.0, 0.1),
        observation_noise=0.02,
        kick_speed=0.5,
        kick_interval=0.3,
        freeze_time=(0.1, 0.3),
        lost_robots=("dead", "absent", "late"),
        lost_time=(0.0, 0.3),
        absent_robots=(0, 1),
    )
    env = env_with(randomization, episode_length_s=0.4)
    other = env_with(randomization, episode_length_s=0.4)
    list(run(env, 26))  # into the second episodes, which lose other robots than the first ones
    other.reset()
    resumed, _ = other.load_state_dict(env.state_dict())
    assert torch.isfinite(resumed).all()
    for k in range(20):  # past the end of the episodes
        actions = torch.full((3, 2, 3), 0.9 - 0.03 * k)
        one = env.step(actions)
        two = other.step(actions)
        assert torch.equal(one.obs, two.obs)
        assert torch.equal(one.reward, two.reward)


@pytest.mark.parametrize(
    "values, complaint",
    [
        ({"object_mass": 0.0}, "env.randomize.object_mass: must be at least 0.001"),
        (
            {"object_mass": [3.0, 1.0]},
            r"object_mass: \[3.0, 1.0\] must be a range in ascending order; say \[1.0, 3.0\]",
        ),
        ({"action_latency": 0.06}, "action_latency: must be .*at most 0.05"),
        (
            {"action_latency": 0.05, "latency_jitter": 0.01},
            "latency_jitter: 0.01 s on top of action_latency",
        ),
        ({"kick": 1.0}, "did you mean env.randomize.kick_speed"),
        ({"observation_noise": "much"}, "observation_noise: must be"),
    ],
)
def test_nonsense_is_refused(values, complaint):
    with pytest.raises(ConfigError, match=complaint):
        build(RandomizationCfg, values, "env.randomize")
