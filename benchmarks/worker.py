"""What waits for its turn in the interleaved rounds of the other programs here."""

import os
import subprocess


class Worker:
    """A contestant in a process of its own; a line on its input starts a round, a line on its output ends it."""

    def __init__(self, *command, **environment):
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.name = self.process.stdout.readline().strip()

    def round(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return tuple(float(number) for number in self.process.stdout.readline().split())

    def close(self):
        self.process.stdin.close()
        self.process.wait()
