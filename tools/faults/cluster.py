"""Try the Slurm scripts from docs/guides/cluster.md with stand-ins for Slurm and torchrun, and a
cluster's signals.

``python tools/faults/cluster.py`` takes two minutes and prints the scripts' actions. Words choose
among ``signals`` and ``ranks``.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    "--preset smoke --num_envs 4 --num_env_steps 12_000 --set runner.num_steps=4 --set "
    "network.hidden_sizes=[8] "
    "--set runner.checkpoint_interval=4_000 --set runner.torch_threads=1"
)
SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGXCPU, signal.SIGKILL)
STAND_INS = {
    "srun": 'echo $$ > pid; exec "$@"',
    # its nodes are called node1 and node2
    "scontrol": 'if [ "$1" = show ]; then echo node1; echo node2; else echo "$@" >> requeued; fi',
    # one process stands for all ranks; it ends with 1, as torchrun does, whatever the code of the
    # rank was
    "torchrun": 'echo "$@" > torchrun_words; while [ "$1" != -m ]; do shift; done; python "$@" '
    "|| exit 1",
    "mapush": 'exec python -m mapush "$@"',
}


def main() -> int:
    """Try the command line's selection, or everything. Return 1 after any failure."""
    trials = {"signals": try_signals, "ranks": try_ranks}
    with tempfile.TemporaryDirectory() as folder:
        work_folder = Path(folder)
        for name, script in scripts().items():
            (work_folder / f"{name}.sh").write_text(script)
        for name, body in STAND_INS.items():
            (work_folder / name).write_text(f"#!/bin/bash\n{body}\n")
            (work_folder / name).chmod(0o755)
        return max(trials[name](work_folder) for name in sys.argv[1:] or trials)


def scripts() -> dict[str, str]:
    """Return the scripts in docs/guides/cluster.md by job name."""
    text = (ROOT / "docs/guides/cluster.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    return {re.findall(r"--job-name=(\S+)", script)[0]: script for script in blocks}


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return Slurm's environment variables, with the stand-ins first on the path."""
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    slurm = {"SLURM_JOB_ID": "77", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_NUM_NODES": "2"}
    slurm |= {"SLURM_JOB_NODELIST": "node[1-2]", "SETTINGS": SETTINGS}
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)} | slurm | more


def try_signals(folder: Path) -> int:
    """Send every signal to a run on one GPU."""
    return max(try_signal(folder, number) for number in SIGNALS)


def try_ranks(folder: Path) -> int:
    """Interrupt a run under torchrun by its clock, restart it, and check torchrun's arguments."""
    failed = 0
    for job, flags in (
        (
            "push-nodes",
            "--nnodes 2 --nproc_per_node 4 --rdzv_id 77 --rdzv_backend c10d --rdzv_endpoint "
            "node1:20077 "
            "-m harl_mapush.train",
        ),
    ):
        run = folder / f"run-{job}"
        requeued = folder / "requeued"
        requeued.unlink(missing_ok=True)
        command = ["bash", str(folder / f"{job}.sh")]
        settings = f"{SETTINGS} --set runner.num_env_steps=4_000_000"
        (folder / f"{job}.sh").write_text(
            (folder / f"{job}.sh").read_text().replace("3h50m", "30s")
        )
        answers = []
        for _ in range(2):  # the second resumes, and its clock ends it as well
            more = {"RUN": str(run), "SETTINGS": settings}
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment(folder, **more),
                capture_output=True,
                check=False,
            )
            answers.append(
                (
                    done.returncode,
                    (folder / "torchrun_words").read_text().strip(),
                    done.stdout.decode(),
                )
            )
        (first, words, _), (second, words_again, said) = answers
        requests = requeued.read_text().split("\n") if requeued.exists() else []
        is_right = (first, second, requests) == (
            0,
            0,
            ["requeue 77"] * 2 + [""],
        ) and "resumes at" in said
        is_right &= words == f"{flags} {settings} --out {run} --max_wall_time 30s"
        is_right &= words_again == f"{flags} --resume {run}"
        (run / "checkpoints").rename(run / "gone")  # from here on no job gets any further
        (run / "config.yaml").write_text("damaged")
        more = {"RUN": str(run)}
        last = subprocess.run(
            command, cwd=folder, env=environment(folder, **more), capture_output=True, check=False
        )
        is_right &= last.returncode == 1 and requeued.read_text() == "requeue 77\n" * 2
        if is_right:
            verdict = "requeued twice, then ended with its error"
        else:
            verdict = f"wrong: {answers} {requests} {last}"
        sys.stdout.write(f"{job}: {verdict}\n")
        failed |= not is_right
    return int(failed)


def try_signal(folder: Path, number: signal.Signals) -> int:
    """Run the job, interrupt it once, and rerun it until done. Return 1 if it is unfinished."""
    run = folder / f"run-{number.name}"
    requeued = folder / "requeued"
    requeued.unlink(missing_ok=True)
    (folder / "pid").unlink(missing_ok=True)
    log = folder / "log"
    variables = environment(folder, RUN=str(run))
    job = ["bash", str(folder / "push.sh")]
    with (
        log.open("w") as stream,
        subprocess.Popen(job, cwd=folder, env=variables, stdout=stream, stderr=stream) as first,
    ):
        while not (run / "checkpoints" / "4k").exists() and first.poll() is None:
            time.sleep(0.05)
        os.kill(int((folder / "pid").read_text()), number)
        code = first.wait()
    requests = requeued.read_text().split() if requeued.exists() else []
    again = subprocess.run(
        job, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    last = again.stdout.splitlines()[-1] if again.stdout else again.stderr
    expected = (
        code == 137 if number == signal.SIGKILL else (code, requests) == (0, ["requeue", "77"])
    )
    went_on = "resumes at" in again.stdout
    wish = " ".join(requests) or "nothing"
    sys.stdout.write(
        f"{number.name}: job ended with {code}, asked for {wish}; again: {again.returncode}, "
        f"{last}\n"
    )
    return 0 if expected and again.returncode == 0 and last.startswith("Done") and went_on else 1


if __name__ == "__main__":
    sys.exit(main())
