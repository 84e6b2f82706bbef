"""``python -m retrievalguard.ray RUN --out DIR``: a shared run on a Ray cluster, from the command line."""

from __future__ import annotations

import argparse
import sys

from .. import RetrievalGuardError
from . import certify


def main() -> int:
    """Reads the arguments, does the run, and says what came of it."""
    parser = argparse.ArgumentParser(
        prog="python -m retrievalguard.ray",
        description="Does what is left of a shared run on a Ray cluster, and merges it here.",
        epilog="A run is shared by `retrievalguard certify … --share RUN`, or by retrievalguard.share_pictures.",
    )
    parser.add_argument("run", help="the run: a directory that all nodes see, or an address such as s3://bucket/run")
    parser.add_argument("--out", default="certificates", help="directory for the table (default: %(default)s)")
    parser.add_argument("--address", help="of the cluster; by default the one that runs here, or a new one")
    parser.add_argument("--threads", type=int, help="threads and CPUs of an actor; all of its node's by default")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of an actor (default: %(default)s)")
    parser.add_argument("--engine", choices=["onnxruntime", "rten"], help="the run's by default")
    parser.add_argument("--library", help="onnxruntime's library on the nodes")
    parser.add_argument("--provider", default="cpu", help="where onnxruntime computes (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="pictures per call (default: %(default)s)")
    parser.add_argument("--cache", help="where the nodes keep encoder and gallery of a run in an object store")
    parser.add_argument("--attempts", type=int, default=5, help="tries per task (default: %(default)s)")
    arguments = vars(parser.parse_args())
    failures: tuple[type[BaseException], ...] = (RetrievalGuardError, ConnectionError)
    try:
        from ray.exceptions import RayError

        failures += (RayError,)
    except ImportError:
        pass  # The call that needs it raises a better error.
    try:
        certificates = certify(arguments.pop("run"), arguments.pop("out"), **arguments)
    except failures as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from there", file=sys.stderr)
        return 130
    print(certificates)
    return 0


if __name__ == "__main__":
    sys.exit(main())
