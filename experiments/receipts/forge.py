"""Forges receipts: changes one thing that a receipt says and seals it again, so that only computing anew shows it.

    python3 experiments/receipts/forge.py RECEIPT... --out DIR [--count N] [--each N]

Each receipt gets one forgery, or so many, the kinds in turn; receipts that certify nothing get none. Digest and commitment are made
to fit, as docs/receipts.md says they are computed; a signature is dropped. `DIR/forgeries.jsonl` lists file, receipt and kind.
"""

import argparse
import copy
import hashlib
import json
import math
import pathlib
from fractions import Fraction


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def tagged(purpose, value):
    return hashlib.sha256(purpose.encode() + canonical(value)).hexdigest()


def seal(receipt):
    """Commitment and digest of what it says; nobody signs a forgery."""
    if receipt["opened"] is not None:
        content = {"fixed": receipt["fixed"], "opened": receipt["opened"]}
        receipt["commitment"] = tagged("retrievalguard receipt commitment 1\n", content)
    body = {key: value for key, value in receipt.items() if key not in ("digest", "signature")}
    return receipt | {"digest": tagged("retrievalguard receipt 1\n", body), "signature": None}


def real(number):
    """The shortest digits of a number, without an exponent."""
    text = repr(float(number))
    if "e" in text:
        digits = -int(text.split("e")[1]) + len(text.split("e")[0].replace(".", "")) + 2
        text = f"{number:.{digits}f}".rstrip("0")
    return text.removesuffix(".0")


def cut(radius):
    """As statements have it: cut after four decimals, or nine."""
    places = 4 if radius >= 0.001 else 9
    digits = str(math.floor(Fraction(radius) * 10**places)).rjust(places + 1, "0")
    return digits[:-places] + "." + digits[-places:]


def radius_times(factor):
    def forge(receipt):
        answer = receipt["answers"][0]
        if answer["radius"] in (None, "unbounded"):
            return False
        old = float(answer["radius"])
        new = old * factor
        # Wherever it stands: in the answer, in the last step and in the statement.
        for step in answer["counted"]["steps"]:
            if step["value"] == answer["radius"]:
                step["value"] = real(new)
        answer["statement"] = answer["statement"].replace(f"below {cut(old)} ", f"below {cut(new)} ")
        answer["radius"] = real(new)
        return True
    return forge


def label(receipt):
    answer = receipt["answers"][0]
    old = answer["label"]
    if old is None or answer["radius"] is None:
        return False
    # A label that the gallery may well have: one of the rivals, where they are named.
    counted = answer["counted"]
    rivals = counted.get("losses") or (counted.get("votes") or {}).get("rivals") or []
    new = rivals[0]["label"] if rivals else old + " "
    answer["statement"] = answer["statement"].replace(old, new)
    answer["label"] = new
    if receipt["fixed"]["question"]["label"] == old:
        receipt["fixed"]["question"]["label"] = new
    return True


def counts(receipt):
    counted = receipt["answers"][0]["counted"]
    total = receipt["answers"][0]["samples"]
    if "losses" in counted:
        worst = max(counted["losses"], key=lambda rival: rival["copies"], default=None)
        if worst is None:
            counted["losses"] = [{"label": "nobody", "copies": total // 3}]
        else:
            worst["copies"] = max(1, (total - worst["copies"]) // 2) if 2 * worst["copies"] < total else 1
        return True
    if "votes" in counted:
        right = counted["votes"]["right"]
        counted["votes"]["right"] = total if right < total else total // 2
        return True
    if counted.get("tests"):
        del counted["tests"][0]
        return True
    if "bound" in counted:
        counted["bound"]["embedding"] = ["0.5" for _ in counted["bound"]["embedding"]]
        return True
    return False


def noise(field, value):
    def forge(receipt):
        settings = receipt["fixed"]["noise"]
        if settings is None or settings[field] == value:
            return False
        settings[field] = value
        if field == "alpha":
            for answer in receipt["answers"]:
                answer["statement"] = answer["statement"].replace("except with probability 0.01 ", f"except with probability {value} ")
        return True
    return forge


def stage(receipt):
    if not receipt["drawn"]:
        return False
    receipt["drawn"][-1]["stage"] = "judge"
    return True


def sample_range(receipt):
    if not receipt["drawn"]:
        return False
    last = receipt["drawn"][-1]
    last["first"], last["end"] = last["first"] + 1, last["end"] + 1
    return True


def place(*path, value):
    def forge(receipt):
        target = receipt
        for key in path[:-1]:
            target = target[key]
            if target is None:
                return False
        if target[path[-1]] == value:
            return False
        target[path[-1]] = value
        return True
    return forge


def certificate(receipt):
    fixed, answer = receipt["fixed"], receipt["answers"][0]
    if fixed["noise"] is None:
        radii = [float(other["radius"]) for other in receipt["answers"] if other["radius"] not in (None, "unbounded")]
        if len(radii) < 2 or max(radii) < 1.001 * min(radii):
            # Both say nearly the same, and then so does the forgery.
            return False
        fixed["certificates"] = ["lipschitz-margin" if answer["certificate"] == "lipschitz" else "lipschitz"]
        answer["certificate"] = fixed["certificates"][0]
        del receipt["answers"][1:]
        return True
    other = "vote" if answer["certificate"] == "pairwise" else "pairwise"
    fixed["certificates"], fixed["retriever"], answer["certificate"] = [other], other, other
    del receipt["answers"][1:]
    return True


def statement(receipt):
    receipt["answers"][0]["statement"] = "No change whatsoever changes the label."
    return True


def forward_error(receipt):
    bound = receipt["answers"][0]["counted"].get("bound")
    if bound is None:
        return False
    bound["forward_error"] = "0.5"
    return True


def unbounded(receipt):
    if receipt["answers"][0]["radius"] in (None, "unbounded"):
        return False
    receipt["answers"][0]["radius"] = "unbounded"
    return True


KINDS = {
    "radius": radius_times(1.2),
    "radius-by-a-thousandth": radius_times(1.001),
    "smaller-radius": radius_times(0.8),
    "unbounded": unbounded,
    "label": label,
    "counts": counts,
    "gallery-vectors": place("fixed", "gallery", "vectors", value="11" * 32),
    "gallery-items": place("fixed", "gallery", "items", value="22" * 32),
    "gallery-rows": place("fixed", "gallery", "excluded", value=[0]),
    "picture": place("fixed", "picture", "file", value="33" * 32),
    "pixels": place("fixed", "picture", "pixels", value="44" * 32),
    "model": place("fixed", "encoder", "model", value="55" * 32),
    "config": place("fixed", "encoder", "config", value="{}"),
    "stage": stage,
    "samples": sample_range,
    "sigma": noise("sigma", "0.5"),
    "alpha": noise("alpha", "0.0001"),
    "certificate": certificate,
    "statement": statement,
    "forward-error": forward_error,
    "constant": place("fixed", "bound", "constant", value="0.5"),
}


# Kinds whose commitment stays, so that it no longer fits: what is committed to anew is no forgery but another promise.
OPENED = {
    "seed": lambda opened: opened | {"seed": str(int(opened["seed"]) ^ 1)},
    "salt": lambda opened: opened | {"salt": "66" * 32},
}


def forged(receipt, kind):
    """The forgery, or None if this receipt has nothing of the kind."""
    receipt = copy.deepcopy(receipt)
    if kind in KINDS:
        return seal(receipt) if KINDS[kind](receipt) else None
    if receipt["opened"] is None:
        return None
    receipt["opened"] = OPENED[kind](receipt["opened"])
    body = {key: value for key, value in receipt.items() if key not in ("digest", "signature")}
    return receipt | {"digest": tagged("retrievalguard receipt 1\n", body), "signature": None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("receipts", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--count", type=int, help="stop after so many")
    parser.add_argument("--each", type=int, default=1, help="forgeries of each receipt")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    kinds, turn, made = [*KINDS, *OPENED], 0, 0
    with open(arguments.out / "forgeries.jsonl", "w", encoding="utf-8") as listing:
        for path in arguments.receipts:
            receipt = json.loads(path.read_text(encoding="utf-8"))
            # Where nothing is certified, other parameters may make no difference, and then nothing false is said.
            if receipt["answers"][0]["radius"] is None:
                continue
            left = min(arguments.each, len(kinds))
            for step in range(len(kinds)):
                kind = kinds[(turn + step) % len(kinds)]
                forgery = forged(receipt, kind)
                if forgery is None:
                    continue
                name = f"{made:06}.{kind}.receipt.json"
                text = json.dumps(forgery, indent=2, ensure_ascii=False) + "\n"
                (arguments.out / name).write_text(text, encoding="utf-8")
                listing.write(json.dumps({"file": name, "receipt": str(path), "kind": kind}) + "\n")
                made, left = made + 1, left - 1
                if made == arguments.count:
                    return
                if left == 0:
                    break
            turn += step + 1


if __name__ == "__main__":
    main()
