"""harl_mapush.clients.harl.harl_logger: push-task metrics in upstream's logs."""

from __future__ import annotations

import pytest

from harl_mapush.clients.harl import harl_logger


class Writer:
    """A summary writer with a record."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag] = (value, step)


class Reporting:
    """The environment members needed by a logger."""

    n_threads = 4
    num_decisions = 0
    headline = (("Success", "success_rate"), ("Collision", "collision_rate"))

    def get_statistics(self) -> dict[str, float]:
        return {
            "success_rate": 0.5,
            "collision_rate": 0.25,
            "episode_time_s": float("nan"),
            "num_episodes": 8,
        }

    def take_rewards(self) -> dict[str, float]:
        return {"reward/total": -0.5}


def test_metrics_that_do_not_exist_are_not_logged(capsys) -> None:
    writer = Writer()
    harl_logger.log_task(Reporting(), writer, 40)  # type: ignore[arg-type]
    assert writer.scalars == {
        "mapush/success_rate": (0.5, 40),
        "mapush/collision_rate": (0.25, 40),
        "mapush/num_episodes": (8, 40),
        "reward/total": (-0.5, 40),
    }
    assert (
        capsys.readouterr().out
        == "[MAPush Stats] Success: 0.500 | Collision: 0.250 | Episodes: 8\n"
    )


@pytest.mark.parametrize(("use_eval", "progress"), [(False, "12,2.5\n"), (True, "")])
def test_the_on_policy_logger(use_eval: bool, progress: str, tmp_path) -> None:
    class Base:
        def __init__(self, args, algo_args, env_args, num_agents, writter, run_dir) -> None:
            self.algo_args = algo_args
            self.env_args = env_args
            self.writter = writter
            self.log_file = (tmp_path / "progress.txt").open("w")
            self.done_episodes_rewards = [2.0, 3.0]
            self.name = self.get_task_name()  # type: ignore[attr-defined]

        def episode_log(self, *arguments) -> None:
            self.total_num_steps = 12
            self.done_episodes_rewards = []

    cls = harl_logger.make_logger(Base)
    writer = Writer()
    logger = harl_logger.bound_logger(cls, Reporting)(  # type: ignore[arg-type]
        {}, {"eval": {"use_eval": use_eval}}, {"object": "cylinder"}, 2, writer, tmp_path
    )
    logger.episode_log([], {}, [], None)
    assert logger.name == "go1push_mid"
    assert writer.scalars["mapush/success_rate"] == (0.5, 12)
    assert (tmp_path / "progress.txt").read_text() == progress


def test_off_policy_runners_report_when_they_save(capsys) -> None:
    class Runner:
        envs = Reporting()
        writter = Writer()
        saved = 0

        def save(self) -> None:
            self.saved += 1

    runner = Runner()
    harl_logger.attach_logger(runner)
    runner.envs.num_decisions = 3
    runner.save()
    assert (runner.saved, runner.writter.scalars["mapush/success_rate"]) == (1, (0.5, 12))
    runner.writter.scalars.clear()
    runner.save()  # nothing happened since
    assert (runner.saved, runner.writter.scalars) == (2, {})
