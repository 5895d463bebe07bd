"""Try the Slurm script of docs/cluster.md: stand-ins for srun and scontrol, and the signals that a cluster sends.

``python tests/faults/cluster.py`` takes about a minute and prints what the script did with each signal.
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
    "--preset smoke --num_envs 4 --num_env_steps 12_000 --set runner.num_steps=4 --set network.hidden_sizes=[8] "
    "--set runner.checkpoint_interval=4_000 --set runner.torch_threads=1"
)
SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGXCPU, signal.SIGKILL)


def main() -> int:
    """Send each signal in the midst of a run, start the job again as it asks, and follow it to its end."""
    text = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "job.sh").write_text(script)
        for name, body in (("srun", 'echo $$ > pid; exec "$@"'), ("scontrol", 'echo "$@" >> requeued')):
            (place / name).write_text(f"#!/bin/bash\n{body}\n")
            (place / name).chmod(0o755)
        return max(try_signal(place, number) for number in SIGNALS)


def try_signal(place: Path, number: signal.Signals) -> int:
    """Run the job, interrupt it once, and run it again until it is done; return 1 where it is not."""
    run, requeued = place / f"run-{number.name}", place / "requeued"
    requeued.unlink(missing_ok=True)
    (place / "pid").unlink(missing_ok=True)
    log = place / "log"
    environment = os.environ | {
        **{"PATH": f"{place}:{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        **{"RUN": str(run), "SETTINGS": SETTINGS, "SLURM_JOB_ID": "77"},
    }
    job = ["bash", str(place / "job.sh")]
    with (
        log.open("w") as stream,
        subprocess.Popen(job, cwd=place, env=environment, stdout=stream, stderr=stream) as first,
    ):
        while not (run / "checkpoints" / "4k").exists() and first.poll() is None:
            time.sleep(0.05)
        os.kill(int((place / "pid").read_text()), number)
        code = first.wait()
    asked = requeued.read_text().split() if requeued.exists() else []
    again = subprocess.run(job, cwd=place, env=environment, capture_output=True, text=True, check=False)
    last = again.stdout.splitlines()[-1] if again.stdout else again.stderr
    expected = code == 137 if number == signal.SIGKILL else (code, asked) == (0, ["requeue", "77"])
    went_on = "goes on at" in again.stdout
    wish = " ".join(asked) or "nothing"
    sys.stdout.write(f"{number.name}: job ended with {code}, asked for {wish}; again: {again.returncode}, {last}\n")
    return 0 if expected and again.returncode == 0 and last.startswith("Done") and went_on else 1


if __name__ == "__main__":
    sys.exit(main())
