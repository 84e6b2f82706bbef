"""Two nodes that `ray start` makes on this machine, and what happens when their processes are killed."""

import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import retrievalguard as rg

# A cluster of our own: neither its nodes nor the driver look for the token that this machine may have for others.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
ray = pytest.importorskip("ray")

import retrievalguard.ray  # noqa: E402
from retrievalguard._progress import Bar  # noqa: E402
from retrievalguard.ray import _actor_pool  # noqa: E402

TABLE = "certificates.parquet"
# Tasks that last long enough to be killed in the middle.
LONG = {"samples": 4000, "pilot": 60, "progress": False}


# Paths of sockets must be short.
FOLDER = pathlib.Path("/tmp") / f"rg-{os.getpid()}"


def processes():
    """Number, parent and command of every process."""
    for place in pathlib.Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
                yield int(place.name), int(parent), command
            except (OSError, UnicodeDecodeError):
                pass


def raylets():
    """The nodes of the tests' own cluster."""
    return {number for number, _, command in processes() if "/raylet " in command and str(FOLDER) in command}


def actors():
    """The actors on them."""
    nodes = raylets()
    named = (number for number, parent, command in processes() if parent in nodes and "RetrievalGuardWorker" in command)
    return list(named)


def start(*words, **variables):
    environment = {**os.environ, **variables}
    command = [pathlib.Path(sys.executable).parent / "ray", "start", "--num-cpus=1", "--object-store-memory=80000000"]
    told = subprocess.run([*command, "--disable-usage-stats", *words], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    head = ["--head", f"--port={address.split(':')[1]}", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
    # Ray believes what it is told: no card is needed to be placed beside one.
    try:
        start(*head, f"--temp-dir={FOLDER}", "--num-gpus=1")
        first = raylets()
        # Where there is no onnxruntime, runs of rten are done nevertheless.
        start(f"--address={address}", "--node-ip-address=127.0.0.1", ORT_DYLIB_PATH="/nowhere/libonnxruntime.so")
        second = raylets() - first
        assert len(first) == len(second) == 1
        yield address, second.pop()
    finally:
        # `ray stop` would stop everybody's clusters.
        for number, _, command in processes():
            if str(FOLDER) in command or f"--address={address}" in command:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture(scope="module")
def whole(encoder, folders, gallery, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    rg.certify_pictures(folders[1], encoder, gallery, 0.1, out, **LONG)
    return (out / TABLE).read_bytes()


@pytest.fixture
def run(encoder, folders, gallery, tmp_path):
    return rg.share_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "run", **LONG)


@pytest.fixture(autouse=True)
def alone():
    """A test that hangs fails, and actors of an earlier one end soon after it."""

    def late(number, frame):
        raise TimeoutError("the test takes too long")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(900)
    while actors():
        time.sleep(0.05)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Killer:
    """Hears the progress, and kills processes when so much is done."""

    def __init__(self, after, victims):
        self.after, self.victims, self.killed, self.told = after, victims, [], []

    def __call__(self, done, total):
        self.told.append((done, total))
        if done >= self.after and not self.killed:
            self.killed = list(self.victims())
            for number in self.killed:
                os.kill(number, signal.SIGKILL)


def test_an_actor_killed_in_the_middle_changes_no_byte(cluster, run, whole, tmp_path):
    killer = Killer(3, lambda: actors()[:1])
    found = rg.ray.certify(run, tmp_path / "out", address=cluster[0], progress=killer)
    assert len(killer.killed) == 1 and killer.told[-1] == (12, 12)
    assert (tmp_path / "out" / TABLE).read_bytes() == whole and len(found) == 12
    assert not ray.is_initialized()


def test_a_killed_driver_goes_on_where_it_was(cluster, run, whole, tmp_path):
    words = [sys.executable, "-m", "retrievalguard.ray", run.address, "--address", cluster[0], "--out", tmp_path / "out"]
    child = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while child.poll() is None and len(run.unfinished()) > 9:
        time.sleep(0.02)
    child.kill()
    child.wait()
    left = len(run.unfinished())
    assert 0 < left <= 9
    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "half-space" in done.stdout and (tmp_path / "out" / TABLE).read_bytes() == whole


def test_a_node_that_cannot_open_the_run_is_named_and_the_others_go_on(cluster, model, folders, gallery, tmp_path):
    encoder = rg.Encoder(model, engine="onnxruntime")
    # Long enough for the other node to be heard before all is done.
    longer = {**LONG, "samples": 30_000}
    run = rg.share_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "run", **longer)
    rg.certify_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "whole", **longer)
    with pytest.warns(UserWarning, match="does not take part: .*/nowhere"):
        rg.ray.certify(run, tmp_path / "out", address=cluster[0], progress=False)
    assert (tmp_path / "out" / TABLE).read_bytes() == (tmp_path / "whole" / TABLE).read_bytes()


def test_actors_are_placed_where_the_cards_are(cluster, run):
    seen = set()
    rg.ray.work(run, address=cluster[0], gpus=1, threads=1, progress=lambda done, total: seen.update(actors()))
    assert len(seen) == 1 and run.unfinished() == []


class Poisoned(_actor_pool.RetrievalGuardWorker):
    """Dies of task 5."""

    def carry_out(self, number):
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        super().carry_out(number)


def test_a_task_that_kills_its_actors_is_named(cluster, run, monkeypatch):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(_actor_pool, "RetrievalGuardWorker", Poisoned)
    with pytest.raises(rg.RetrievalGuardError, match="task 5 of run .* lost its actor 3 times"):
        rg.ray.work(run, address=cluster[0], attempts=3, progress=False)
    assert 5 in run.unfinished()
    monkeypatch.undo()
    rg.ray.work(run, address=cluster[0], progress=False)
    assert run.unfinished() == []


def test_what_is_wrong_with_a_run_is_said_once_and_by_name(cluster, run, encoder, folders, gallery, tmp_path):
    with pytest.warns(UserWarning, match="does not take part"), pytest.raises(rg.InputError, match="needs engine rten|no usable onnxruntime"):
        rg.ray.work(run, address=cluster[0], engine="onnxruntime", progress=False)
    # The other node has no card, so there is nobody left to wait for.
    with pytest.warns(UserWarning, match="does not take part"), pytest.raises(rg.InputError, match="needs engine rten"):
        rg.ray.work(run, address=cluster[0], engine="onnxruntime", gpus=1, progress=False)
    with _actor_pool.connected(cluster[0]), _actor_pool.ActorPool(run, 64, 0, {}, 5, True) as pool:
        with pytest.raises(rg.InputError, match="an actor wants 64 CPUs of a node and 0 GPUs"):
            pool.finish([0], Bar(False, 1, "", ""))
    picture = next((tmp_path / "run" / "pictures").iterdir())
    picture.write_bytes(b"another")
    with pytest.raises(rg.InputError, match="has sha256 .* its manifest says"):
        rg.ray.work(run, address=cluster[0], progress=False)
    with pytest.raises(rg.InputError, match="has no shared.json"):
        rg.ray.work(tmp_path / "nowhere", address=cluster[0])
    with pytest.raises(ConnectionError, match="no Ray cluster answers at `127.0.0.1:1`"):
        rg.ray.work(run, address="127.0.0.1:1", progress=False)


def test_a_lost_node_changes_no_byte(cluster, run, whole, tmp_path):
    killer = Killer(2, lambda: [cluster[1]])
    rg.ray.certify(run, tmp_path / "out", address=cluster[0], progress=killer)
    assert killer.killed == [cluster[1]]
    assert (tmp_path / "out" / TABLE).read_bytes() == whole


def test_a_node_that_joins_later_takes_part(cluster, encoder, folders, gallery, tmp_path):
    longer = {**LONG, "samples": 40_000}
    run = rg.share_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "run", **longer)
    before, seen = raylets(), set()

    def join(done, total):
        if done and raylets() == before:
            start(f"--address={cluster[0]}", "--node-ip-address=127.0.0.1")
        working = set(actors())
        seen.update(parent for number, parent, _ in processes() if number in working)

    rg.ray.work(run, address=cluster[0], progress=join)
    assert run.unfinished() == [] and len(raylets() - before) == 1
    assert raylets() - before <= seen
