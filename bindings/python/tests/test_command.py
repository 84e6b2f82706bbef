"""The command that the wheel brings, run as a shell runs it: pip must not have changed how it ends, listens and shows itself."""

import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
import retrievalguard as rg
from conftest import MODELS, drawn, png

PROGRAM = os.environ.get("RETRIEVALGUARD_PROGRAM", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="RETRIEVALGUARD_PROGRAM names no program")
MODEL = MODELS / "convolutional.onnx"
SMALL = ["--model", MODEL, "--engine", "rten"]


def run(*words, **options):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=120, **options)


def start(*words, **options):
    return subprocess.Popen([PROGRAM, *words], text=True, **options)


@pytest.fixture
def slow(folders, gallery, tmp_path):
    """A run of minutes, so that there is something to stop."""
    return ["certify", folders[1], "--gallery", gallery, *SMALL, "--samples", "300000", "--out", tmp_path / "run"]


def test_it_is_of_the_version_of_the_package():
    assert run("--version").stdout == f"retrievalguard {rg.__version__}\n"


def test_the_wheel_brings_it_and_onnxruntime_and_the_one_finds_the_other():
    # As a service manager starts it: nothing is activated, and `python3` on the path is another.
    if pathlib.Path(PROGRAM).parent != pathlib.Path(sys.executable).parent:
        pytest.skip("RETRIEVALGUARD_PROGRAM is not in the environment of the tests")
    found = run("doctor", "--json", env={"PATH": "/usr/bin:/bin"})
    report = json.loads(found.stdout)
    assert found.returncode == 0 and report["engine"]["engine"] == "onnxruntime", report
    assert report["place"] == "environment" and report["engine"]["library"].startswith(sys.prefix), report


def test_it_ends_with_the_status_of_what_happened(folders, tmp_path):
    assert run("doctor").returncode == 0
    wrong = run("frobnicate")
    assert wrong.returncode == 2 and "frobnicate" in wrong.stderr and wrong.stdout == ""
    missing = run("index", tmp_path / "nowhere", *SMALL, "--sigma", "0.1", "--gallery", tmp_path / "g")
    assert missing.returncode == 2 and "nowhere" in missing.stderr
    with open("/dev/full", "w") as full:
        failed = subprocess.run([PROGRAM, "completions", "bash"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert failed.returncode == 1 and "standard output" in failed.stderr


def test_a_reader_that_has_seen_enough_is_no_failure():
    # More than a pipe holds, so that writing goes on after the reader has gone.
    with start("completions", "bash", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert len(child.stdout.read(10)) == 10
        child.stdout.close()
        assert child.stderr.read() == "" and child.wait(60) == 0


def test_the_first_ctrl_c_stops_a_run_so_that_it_can_go_on(slow):
    with start(*slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert any(line.startswith("certifying ") for line in child.stderr)
        child.send_signal(signal.SIGINT)
        told = child.stderr.read()
        assert child.wait(120) == 1 and "error: " in told, told
        assert "Traceback" not in told and "KeyboardInterrupt" not in told


def test_on_a_terminal_it_draws_a_bar(slow):
    ours, theirs = pty.openpty()
    with start(*slow, stdout=subprocess.DEVNULL, stderr=theirs) as child:
        os.close(theirs)
        seen, until = b"", time.monotonic() + 60
        while b"certifying [" not in seen and time.monotonic() < until:
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 4096)
        child.kill()
    os.close(ours)
    assert b"certifying [" in seen and b"ETA" in seen, seen


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_the_service_answers_and_ends_in_order(gallery, sent):
    words = ["serve", "--gallery", gallery, *SMALL, "--port", "0"]
    with start(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        address = child.stdout.readline().strip()
        asked = urllib.request.Request(f"{address}/v1/query?samples=100", png(drawn(1, 20)), {"content-type": "image/png"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            verdict = json.load(answer)["verdict"]
        child.send_signal(sent)
        assert verdict in ("certified", "abstained") and child.wait(60) == 0
