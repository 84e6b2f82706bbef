"""A run of certificates on two Ray nodes of one CPU each, beside the same run on two threads of one process.

Usage: ray_nodes.py FOLDER [ROUNDS], with the demo in FOLDER/demo.

Each round does the run in one process, on the two nodes, and on the two nodes with an actor killed at half of the tasks.
Times are from the call to the merged table: placing actors and opening encoder and gallery count, `ray start` does not.
"""

import os
import pathlib
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import time

# A cluster of our own: neither its nodes nor the driver look for the token that this machine may have for others.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))

import retrievalguard as rg
import retrievalguard.ray

ADDRESS = "127.0.0.1:6391"
SIGMA = 0.25
OPTIONS = {"samples": 4000, "progress": False}


def processes():
    """Number and command of every process."""
    for place in pathlib.Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                yield int(place.name), (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, UnicodeDecodeError):
                pass


def kill(wanted, most):
    """Kills processes whose command is wanted."""
    found = [number for number, command in processes() if wanted(command)][:most]
    for number in found:
        os.kill(number, signal.SIGKILL)
    return len(found)


def start(*words):
    program = pathlib.Path(sys.executable).parent / "ray"
    common = ["start", "--num-cpus=1", "--node-ip-address=127.0.0.1", "--object-store-memory=80000000"]
    subprocess.run([program, *common, "--disable-usage-stats", *words], check=True, capture_output=True)


class Killer:
    """Hears the progress, and kills an actor at half of it."""

    def __init__(self):
        self.killed = 0

    def __call__(self, done, total):
        if not self.killed and 2 * done >= total:
            self.killed = kill(lambda command: command.startswith("ray::RetrievalGuardWorker"), 1)


def timed(call):
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main():
    folder = pathlib.Path(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    demo, scratch = folder / "demo", folder / "runs"
    arguments = (demo / "pictures" / "queries", rg.Encoder(demo / "encoder.onnx", threads=2), demo / "gallery", SIGMA)
    sockets = pathlib.Path("/tmp") / f"rg-{os.getpid()}"
    start("--head", f"--port={ADDRESS.split(':')[1]}", "--include-dashboard=false", f"--temp-dir={sockets}")
    try:
        start(f"--address={ADDRESS}")
        times = {"one process": [], "two nodes": [], "two nodes, an actor killed": []}
        for _ in range(rounds):
            shutil.rmtree(scratch, ignore_errors=True)
            tables = []
            for name, found in times.items():
                out = scratch / f"{name} table"
                if name == "one process":
                    found.append(timed(lambda: rg.certify_pictures(*arguments, out, **OPTIONS)))
                else:
                    run = rg.share_pictures(*arguments, scratch / name, **OPTIONS)
                    killer = Killer() if "killed" in name else False
                    found.append(timed(lambda: rg.ray.certify(run, out, address=ADDRESS, progress=killer)))
                    assert not killer or killer.killed == 1, "no actor was killed"
                tables.append((out / "certificates.parquet").read_bytes())
            assert tables[0] == tables[1] == tables[2], "the tables differ"
        print(f"{run.tasks} queries at n = {OPTIONS['samples']:,}, {arguments[1].engine}; the same bytes in every round")
        for name, found in times.items():
            ratio = statistics.median(own / base for own, base in zip(found, times["one process"]))
            each = ", ".join(f"{seconds:.1f}" for seconds in found)
            print(f"  {name}: {each} s; {ratio:.3f} of one process (median of the rounds)")
    finally:
        kill(lambda command: str(sockets) in command or f"--address={ADDRESS}" in command, None)
        shutil.rmtree(sockets, ignore_errors=True)


if __name__ == "__main__":
    main()
