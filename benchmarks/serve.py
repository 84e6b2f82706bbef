"""Load on a service. Usage: serve.py RETRIEVALGUARD FOLDER [ROUNDS]

Each round: all pictures of the demo's query part are certified offline by `retrievalguard certify`, then by a service in
a closed loop of clients that keeps it saturated, with the same samples. Then, once, an open loop sends four times the
measured rate. Prints one JSON object.
"""

import collections
import http.client
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time

PROGRAM, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 3
SAMPLES, CLIENTS, OVERLOAD_SECONDS = 1000, 8, 40


def run(*words):
    return subprocess.run([PROGRAM, *map(str, words)], check=True, capture_output=True, text=True).stdout


def memory(process):
    """Resident memory now and at its highest, in MB."""
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    value = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return int(value["VmRSS"]) / 1024, int(value["VmHWM"]) / 1024


class Service:
    def __init__(self, gallery, encoder):
        words = ["serve", "--gallery", gallery, "--model", encoder, "--port", "0", "--log", "off"]
        self.process = subprocess.Popen([PROGRAM, *map(str, words)], stdout=subprocess.PIPE, text=True)
        self.host, port = self.process.stdout.readline().strip().removeprefix("http://").split(":")
        self.port = int(port)

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=120)

    def ask(self, connection, picture):
        """Status, Retry-After, seconds and the answer."""
        started = time.monotonic()
        connection.request("POST", f"/v1/query?samples={SAMPLES}", picture, {"Content-Type": "image/png"})
        response = connection.getresponse()
        body = response.read()
        seconds = time.monotonic() - started
        answer = json.loads(body) if response.status == 200 else None
        return response.status, response.getheader("Retry-After"), seconds, answer

    def get(self, path):
        connection = self.connect()
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0, "the service did not end in an orderly way"


def closed_loop(service, pictures):
    """Asks for every picture once, `CLIENTS` at a time; queries per second."""
    todo, lock, answers = collections.deque(pictures), threading.Lock(), []

    def client():
        connection = service.connect()
        while True:
            with lock:
                if not todo:
                    return
                picture = todo.popleft()
            status, _, seconds, answer = service.ask(connection, picture)
            assert status == 200, f"status {status} under a load that should be answered"
            with lock:
                answers.append((seconds, answer))

    started = time.monotonic()
    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    [thread.start() for thread in clients]
    [thread.join() for thread in clients]
    assert len(answers) == len(pictures)
    return len(pictures) / (time.monotonic() - started), answers


def open_loop(service, pictures, rate):
    """Sends `rate` queries per second whether they are answered or not."""
    results, lock, clients = [], threading.Lock(), []

    def client(picture):
        connection = service.connect()
        try:
            status, retry, seconds, _ = service.ask(connection, picture)
        except OSError as error:
            status, retry, seconds = type(error).__name__, None, None
        finally:
            connection.close()
        with lock:
            results.append((status, retry, seconds))

    started, sent, peak = time.monotonic(), 0, 0.0
    while time.monotonic() - started < OVERLOAD_SECONDS:
        time.sleep(max(0.0, started + sent / rate - time.monotonic()))
        clients.append(threading.Thread(target=client, args=(pictures[sent % len(pictures)],)))
        clients[-1].start()
        sent += 1
        if sent % 20 == 0:
            peak = max(peak, memory(service.process)[0])
    [thread.join() for thread in clients]
    return results, time.monotonic() - started, peak


def main():
    demo = FOLDER / "demo"
    run("demo", "--out", demo, "--queries", 1)
    pictures = [path.read_bytes() for path in sorted((demo / "pictures" / "queries").rglob("*.png"))]
    encoder, gallery, queries = demo / "encoder.onnx", demo / "gallery", demo / "pictures" / "queries"
    ratios, offline, online = [], [], []
    service = Service(gallery, encoder)
    idle = memory(service.process)[0]
    for number in range(ROUNDS):
        out = FOLDER / f"certificates-{time.time_ns()}"
        started = time.monotonic()
        run("certify", queries, "--gallery", gallery, "--model", encoder, "--sigma", 0.25, "--samples", SAMPLES,
            "--pilot", 200, "--out", out)
        offline.append(len(pictures) / (time.monotonic() - started))
        rate, answers = closed_loop(service, pictures)
        online.append(rate)
        ratios.append(rate / offline[-1])
    certified = sum(answer["verdict"] == "certified" for _, answer in answers)
    saturated = memory(service.process)[0]
    rate = statistics.median(online)
    results, seconds, peak = open_loop(service, pictures, 4 * rate)
    counts = collections.Counter(str(status) for status, _, _ in results)
    answered = sorted(seconds for status, _, seconds in results if status == 200)
    refused = sorted(seconds for status, _, seconds in results if status in (429, 503))
    without_hint = sum(status in (429, 503) and retry is None for status, retry, _ in results)
    ready = service.get("/readyz")[0]
    again, _ = closed_loop(service, pictures)
    time.sleep(1)
    left = memory(service.process)
    service.stop()
    print(json.dumps({
        "queries": len(pictures), "samples": SAMPLES, "clients": CLIENTS,
        "offline_per_second": [round(value, 2) for value in offline],
        "served_per_second": [round(value, 2) for value in online],
        "ratio_median": round(statistics.median(ratios), 3), "ratios": [round(value, 3) for value in ratios],
        "certified": certified,
        "overload": {
            "sent_per_second": round(len(results) / OVERLOAD_SECONDS, 1), "statuses": dict(counts),
            "answered_per_second": round(len(answered) / seconds, 2),
            "answered_seconds_median_and_longest": [round(statistics.median(answered), 2), round(answered[-1], 2)],
            "refused_seconds_median": round(statistics.median(refused), 4) if refused else None,
            "refused_without_retry_after": without_hint,
        },
        "ready_afterwards": ready, "served_per_second_afterwards": round(again, 2),
        "memory_mb": {"idle": round(idle), "saturated": round(saturated), "overload_peak": round(peak),
                      "afterwards": round(left[0]), "highest": round(left[1])},
    }, indent=2))


main()
