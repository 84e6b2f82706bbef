#!/usr/bin/env python3
"""Makes the answer of a RetrievalGuard receipt again, by other code than the tool's (docs/receipts.md, docs/theory.md).

Status 0: verified; 1: refused, with the reason; 2: a file cannot be used, or asks for what is not supported here."""
import argparse, hashlib, io, json, math, sys, tomllib
from decimal import ROUND_DOWN, Decimal
from pathlib import Path
import numpy as np, onnxruntime
from PIL import Image, ImageOps
from bounds import half_space, lower_bound, quantile
from lipschitz import EPS, Declined, Refused, need, network, reach_of
CLOSE, LOW = 1e-4, 2**32 - 1  # CLOSE: how far embeddings of two engines are apart, per norm bound
RETRIEVERS = dict(zip(["half-space", "vote", "pairwise", "lipschitz", "lipschitz-margin"],
                      ["mean", "vote", "pairwise", "plain", "plain"]))
FIELDS = {"": "tool picture encoder gallery question retriever certificates noise bound challenge",
          "picture": "identity file pixels", "encoder": "model config dimension components excess engine",
          "gallery": "rows dimension views vectors items excluded", "question": "label",
          "bound": "mixtures top_k constant",
          "noise": "sigma alpha pilot samples schedule target_radius top_k replan_bets seed_from"}

# ---- noise: Philox4x32-10 and the Box-Muller transform ----
def philox(counter, key):
    (c0, c1, c2, c3), (k0, k1) = (np.atleast_1d(word).astype(np.uint64) for word in counter), key
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = right >> 32 ^ c1 ^ k0, right & LOW, left >> 32 ^ c3 ^ k1, left & LOW
        k0, k1 = k0 + 0x9E3779B9 & LOW, k1 + 0xBB67AE85 & LOW
    return np.array(np.broadcast_arrays(c0, c1, c2, c3))

def chain(purpose, blocks):  # each block of 64 bits is the key of one step, whose result is mixed into the state
    state = np.frombuffer(purpose, "<u4")[:, None]
    for block in blocks: state = philox(state, (block & LOW, block >> 32)) ^ state
    return map(int, state.ravel())

def normals(seed, name, stage, samples, pixels):  # a row per sample; the exact transform in f64, rounded to f32 once
    blocks = [int.from_bytes(name[at:at + 8], "little") for at in range(0, len(name), 8)]
    i0, i1, i2, i3 = chain(b"image identity  ", blocks + [len(name)])
    *key, third, fourth = chain(b"noise stream    ", [seed & 2**64 - 1, seed >> 64, i0 | i1 << 32, i2 | i3 << 32])
    block, sample, stage = np.arange(-(-pixels // 64) * 16), np.array(samples), fourth << 16 & LOW | stage
    words = philox((block[None], sample[:, None], stage, third), key)  # axes: word, sample, block
    radius, angle = words[::2].astype(float), words[1::2].astype(np.int64)
    uniform, (half, row, at) = (radius + 0.5) / 2.0**32, np.nonzero(radius < 2**20)  # the tail has 32 further bits
    more = philox((block[at], sample[row], stage | 256, third), key)[2 * half, np.arange(len(at))].astype(float)
    uniform[half, row, at] = (radius[half, row, at] + (more + 0.5) / 2.0**32) / 2.0**32
    length, turn = np.sqrt(-2 * np.log(uniform)), ((angle + 2**29 & 2**30 - 1) - 2**29 + 0.5) * (math.pi / 2**31)
    pair = np.array([np.where(angle >> 31, -length, length) * np.cos(turn), length * np.sin(turn)])
    pair = np.where(angle >> 30 & 1, pair[::-1], pair).astype(np.float32).reshape(2, 2, len(sample), -1, 16)
    return pair.transpose(2, 3, 1, 0, 4).reshape(len(sample), -1)[:, :pixels]

# ---- pictures and encoder ----
def resample(pixels, axis, resized, kept, name, eight):  # one axis; sums in the order of pixels give every bit again
    kernels = {"bilinear": (1, lambda x: max(1 - x, 0.0)), "bicubic": (2, lambda x: (1.5 * x - 2.5) * x * x + 1 if x < 1
               else (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2 else 0.0)}
    need(name in kernels and kept <= resized, f"interpolation {name} to {resized}, of which {kept} are kept", Declined)
    pixels, (support, kernel), start = np.moveaxis(pixels, axis, 0), kernels[name], round((resized - kept) / 2)
    source, scale, wide = len(pixels), len(pixels) / resized, max(len(pixels) / resized, 1.0)
    total = np.zeros((kept,) + pixels.shape[1:])
    for row, place in enumerate(range(start, start + kept)):
        centre, reach = (place + 0.5) * scale, support * wide
        first, end = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), source)
        weights = np.array([kernel(abs((at - centre + 0.5) * (1 / wide))) for at in range(first, end)])
        first, weights = (place, np.ones(1)) if source == resized else (first, weights / np.cumsum(weights)[-1])
        if eight: weights = np.trunc(weights * 2.0**22 + np.where(weights < 0, -0.5, 0.5))  # fixed point, as Pillow's
        for at, weight in enumerate(weights, first): total[row] += pixels[at] * weight
    return np.moveaxis(np.clip(np.floor((total + 2.0**21) / 2.0**22), 0, 255) if eight else total, 0, axis)

def prepare(picture, config):  # the tensor in [0, 1] that noise is added to: channels, rows, columns
    pixels, resize, given = np.asarray(picture, float), config["resize"], config["input"]
    wanted = [given["height"], given["width"]]
    (height, width), size, eight = pixels.shape[:2], resize.get("size", 0), resize["resampling"] == "8-bit"
    tall, wide = {"none": lambda: (height, width), "exact": lambda: (resize["height"], resize["width"])}.get(
        resize["rule"], lambda: (max(size, int(size * height / width)), max(size, int(size * width / height))))()
    kept = wanted if config["crop"]["rule"] == "centre" else [tall, wide]
    need(kept == wanted, f"the prepared picture has {kept[0]} x {kept[1]} pixels")
    down_first = resize["order"] == "cheaper" and height - tall > max(0, 2 * (width - wide))
    for axis in (0, 1) if down_first else (1, 0):
        pixels = resample(pixels, axis, (tall, wide)[axis], kept[axis], resize.get("interpolation", "bilinear"), eight)
    pixels = pixels.astype(np.float32) / np.float32(255) if eight else np.clip(pixels / 255, 0, 1).astype(np.float32)
    return pixels.transpose(2, 0, 1)

def embed(session, pictures, config, encoder):  # scaled to length 1, clamped, held in the ball as the receipt says
    source, target = (config[end].get("name") or of[0].name for end, of in (
        ("input", session.get_inputs()), ("output", session.get_outputs())))
    mean, std = (np.float32(config["input"][part]).reshape(-1, 1, 1) for part in ("mean", "std"))
    rows = session.run([target], {source: (pictures - mean) / std})[0].astype(float)
    length = lambda: np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    rows, bound = rows / (length() if config["output"]["normalise"] else 1), config["output"]["norm_bound"]
    rows = np.maximum(rows, 0) if encoder["components"] == "non-negative" else rows
    need(encoder["excess"] == "project" or length().max() <= bound * (1 + CLOSE), f"norm {length().max()}, not {bound}")
    return rows * np.minimum(bound / length(), 1)

# ---- gallery, exact search and counting ----
class Gallery:
    def __init__(self, folder):
        read = lambda name: Path(folder, name).read_bytes()
        other = {"shards.json", "writes.journal"} & {path.name for path in Path(folder).iterdir()}
        need(not other, f"a gallery with {other}: export it and import it into another folder", Declined)
        items = [json.loads(line) for line in read("items.jsonl").splitlines()]
        lines = b"".join(canonical([one["identity"], one["label"], one.get("view")]) + b"\n" for one in items)
        stored, self.views = np.load(Path(folder, "vectors.npy")), len({one.get("view") for one in items})
        self.vectors, self.sigma = stored.astype(float), json.loads(read("manifest.json")).get("sigma")
        self.facts = {"rows": len(stored), "dimension": stored.shape[1], "views": self.views, "items": sha(lines),
                      "vectors": sha(stored.astype("<f4").tobytes())}
        self.names = {name: number for number, name in enumerate(dict.fromkeys(one["label"] for one in items))}
        self.label = np.array([self.names[one["label"]] for one in items])
        self.unique, self.twin = np.unique(self.vectors, axis=0, return_inverse=True)
    def hide(self, rows):
        whole = sorted({row - row % self.views + view for row in rows for view in range(self.views)})
        need(rows == whole and set(rows) <= set(range(len(self.label))), "the hidden rows are not whole items")
        self.seen = np.setdiff1d(np.arange(len(self.label)), rows)
    def nearest(self, rows):  # distance of each embedding from each label; the last column is a label that no row has
        near, label, twin = np.full((len(rows), len(self.names) + 1), np.inf), self.label[self.seen], self.twin.ravel()
        for row, found in zip(rows, near):  # distances from equal vectors are equal
            np.minimum.at(found, label, np.linalg.norm(self.unique - row, axis=1)[twin[self.seen]])
        return near

def losses(near, answer, slack):  # in how many copies each label is at least as near: counted, at least, at most
    ahead = near - np.minimum(near[:, [answer]], 1e300)
    ahead[ahead == 0] = -np.inf  # a tie is lost for sure
    ahead[:, answer] = np.inf
    return np.array([(ahead <= limit).sum(0) for limit in (0, -slack, slack)])

def votes(near, answer, slack):  # copies that vote for each label, likewise; a tie is no vote for the answer
    near, others = near.copy(), np.delete(near, answer, 1).min(1)
    near[near[:, answer] == others, answer] = np.inf
    close, winner = near <= near.min(1, keepdims=True) + slack, near.argmin(1)
    sure, count = close.sum(1) == 1, lambda cells: np.bincount(cells, minlength=near.shape[1])
    return np.array([count(winner), count(winner[sure]), count(winner[sure]) + close[~sure].sum(0)])

# ---- receipts (docs/receipts.md) ----
def canonical(value): return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
def sha(content): return hashlib.sha256(content).hexdigest()
def text(value): return "unbounded" if value == math.inf else np.format_float_positional(value, trim="-")
def once(pairs): return need(len(dict(pairs)) == len(pairs), "a field is there twice") or dict(pairs)

def same(found, wanted, where):  # in every field that is wanted
    for key in wanted:
        left, right = (canonical(side.get(key, "nothing")).decode() for side in (found, wanted))
        need(left == right, f"{where}.{key} is {left:.300}, wanted {right:.300}")

def settings(config):  # with every default
    usual = {"input": {"channel_order": "rgb", "layout": "nchw"}, "output": {"norm_bound": 1.0},
             "resize": {"order": "cheaper", "resampling": "8-bit"}}
    config = {part: usual.get(part, {}) | config[part] for part in config}
    asked = [config["input"][name] for name in ("channel_order", "layout", "channels")]
    return need(asked == ["rgb", "nchw", 3], f"an encoder that takes {asked}", Declined) or config

def statement(answer, radius, fixed, given):
    if answer["verdict"] != "certified": return "Nothing is certified."
    label, hidden, noise = answer["label"], ", ".join(map(str, fixed["gallery"]["excluded"])), fixed["noise"]
    step = Decimal("0.0001" if radius >= 0.001 else "1e-9")
    change = {"vote": f"makes another label than {label} win the vote of all noisy copies",
              "pairwise": f"keeps {label} from coming before each other label in more than half of all noisy copies"}
    return "".join([
        f"No change of the picture as the encoder gets it ({given['height']} × {given['width']}, ",
        "pixels scaled to [0, 1]) ",
        f"with an l2 norm below {Decimal(radius).quantize(step, ROUND_DOWN):f} " if radius < math.inf else "",
        change.get(answer["certificate"], f"makes the nearest item of this gallery have another label than {label}"),
        f" (rows of the gallery hidden from this query: {hidden})" if hidden else "",
        f", except with probability {noise['alpha']} over the noise drawn for this answer." if noise else
        ". This holds always: it follows from a bound on the encoder that was verified from its weights, "
        "and no chance is involved."])

def check(content, picture, model, session, config, gallery):
    """Makes the receipt again, but for what has to be believed and what is compared with a tolerance."""
    receipt = json.loads(content, object_pairs_hook=once, parse_float=lambda one: need(False, f"the number {one}"))
    fixed, opened, answers, noise = receipt["fixed"], receipt["opened"], receipt["answers"], receipt["fixed"]["noise"]
    tie = lambda kind, value: sha(f"retrievalguard receipt {kind}1\n".encode() + canonical(value))
    body = {name: value for name, value in receipt.items() if name not in ("digest", "signature")}
    bound_to = tie("commitment ", {"fixed": fixed, "opened": opened}) if noise else None
    same(receipt, {"commitment": bound_to, "digest": tie("", body)}, "receipt")
    need(set(fixed["certificates"]) <= set(RETRIEVERS), f"certificates {fixed['certificates']}", Declined)
    need({RETRIEVERS[one] == "plain" for one in fixed["certificates"]} == {noise is None},
         f"{fixed['certificates']} with" + "out" * (noise is None) + " noise")
    need(settings(json.loads(fixed["encoder"]["config"])) == config, "the model config is another")
    pixels = prepare(ImageOps.exif_transpose(Image.open(io.BytesIO(picture))).convert("RGB"), config)
    gallery.hide(fixed["gallery"]["excluded"])
    same(fixed["picture"], {"file": sha(picture), "pixels": sha(pixels.astype("<f4").tobytes())}, "picture")
    same(fixed["gallery"], gallery.facts, "gallery")
    same(fixed["encoder"], {"model": sha(model), "dimension": gallery.facts["dimension"]}, "encoder")
    about = {RETRIEVERS[one] for one in fixed["certificates"]}
    same(fixed, {"certificates": [answer["certificate"] for answer in answers],
                 "retriever": about.pop() if len(about) == 1 else "mean", "bound" if noise else "noise": None}, "fixed")
    for part, keys in FIELDS.items():
        held = fixed[part] if part else fixed
        need(held is None or set(held) == set(keys.split()), f"fields of {part or 'fixed'}: {sorted(held or [])}")
    for part, key, words in [("encoder", "components", ("any", "non-negative")),
                             ("encoder", "excess", ("refuse", "project")), ("noise", "seed_from", ("given", "fresh"))]:
        need(fixed[part] is None or fixed[part][key] in words, f"{part}.{key} is {(fixed[part] or {}).get(key)}")
    salt = opened["salt"] if noise else "0" * 64
    need(len(salt) == 64 and set(salt) <= set("0123456789abcdef"), f"the salt is {salt}")
    names, bound = [*gallery.names, None], config["output"]["norm_bound"]
    if noise:
        sigma, alpha, n, seed = float(noise["sigma"]), float(noise["alpha"]), noise["samples"], int(opened["seed"])
        need(noise["schedule"] == "fixed" and not noise["replan_bets"], "schedules, or bets planned again", Declined)
        need(0 < alpha < 1 and gallery.sigma in (None, sigma) and 0 <= seed < 2**128, "alpha, sigma or seed")
        same(noise, {"sigma": text(sigma), "alpha": text(alpha), "target_radius": None}, "noise")
        drawn = [{"stage": "pilot", "first": 0, "end": noise["pilot"]}, {"stage": "certify", "first": 0, "end": n}]
        name = fixed["picture"]["identity"].encode()
        noisy = lambda stage, some: pixels + np.float32(sigma) * normals(
            seed, name, stage, some, pixels.size).reshape(-1, *pixels.shape)
        rows = [np.concatenate([embed(session, noisy(stage, range(part["end"])[at:at + 32]), config, fixed["encoder"])
                                for at in range(0, part["end"], 32)]) for stage, part in enumerate(drawn, 1)]
        (pilot, near), slack, unit = map(gallery.nearest, rows), 2 * CLOSE * bound, min(sigma, float(np.float32(sigma)))
        mean, found = gallery.nearest(rows[0].mean(0)[None])[0], votes(pilot, -1, slack) - np.arange(len(names)) / 1e6
        if fixed["retriever"] == "pairwise":  # fewest losses, then most votes, then the smaller number
            found = found / 1e6 - np.array([losses(pilot, at, slack).max(1)[[0, 2, 1]] + 1e9 * (found[2, at] < 0.5)
                                            for at in range(len(names))]).T
        likely = mean <= mean.min() + slack if fixed["retriever"] == "mean" else found[2] >= found[1].max()
    else:
        need(not config["output"]["normalise"], "embeddings that are scaled to length 1 have no bound", Declined)
        need(fixed["bound"]["mixtures"] == 1, "right items that stand together", Declined)
        (h, L, error), claimed = network(model, config, pixels), float(fixed["bound"]["constant"])
        farthest = np.linalg.norm(h) + np.linalg.norm(gallery.vectors, axis=1).max()  # a radius leads (theory, 14.6)
        error, drawn, n = error @ [np.linalg.norm(pixels.astype(float)) + farthest / L, 1], [], 0
        need(abs(claimed - L) <= 1e-6 * L, f"the constant is {claimed}, wanted {L}")
        same(fixed["bound"], {"constant": text(claimed)}, "bound")
        likely = np.arange(len(names)) == gallery.nearest(h[None])[0].argmin()
    def low(right, level): return quantile(*lower_bound(int(right), n, level))
    def copies(entries, found, what):  # the recorded counts, each one possible, and how they are written
        count = np.zeros(len(names), int)
        for one in entries: count[names.index(one["label"])] = one["copies"]
        outside = np.flatnonzero((count < found[1]) | (found[2] < count))
        need(not len(outside), f"{what}: {[(names[i], int(count[i]), *map(int, found[1:, i])) for i in outside]}")
        return count, [{"label": names[i], "copies": int(count[i])} for i in sorted(
            np.flatnonzero(count), key=names.__getitem__)]
    for answer in answers:
        counted, verdict, asked = answer["counted"], answer["verdict"], fixed["question"]["label"]
        need(answer["label"] in names, f"the gallery has no label {answer['label']}")
        label, kept = names.index(answer["label"]), {"steps": counted["steps"]}
        need(likely[label] if asked is None else names[label] == (asked if asked in names else None),
             f"the label is {names[label]}, wanted {asked or [names[place] for place in np.flatnonzero(likely)]}")
        radius = answer["radius"] and float(answer["radius"].replace("unbounded", "inf"))
        close, above = 1e-6, 1e-9  # how much below and above its own the checker accepts a radius
        if answer["certificate"] == "pairwise":
            count, kept["losses"] = copies(counted["losses"], losses(near, label, slack), "losses")
            own = [unit * low(n - count.max(), alpha) * (1 - 1e-12) if 2 * count.max() < n else None]
        elif answer["certificate"] == "vote":
            first, given = np.floor(votes(pilot, label, slack) / len(pilot) * n + 0.5), counted["votes"]
            count, rivals = copies([*given["rivals"], {"label": names[label], "copies": given["right"]}],
                                   votes(near, label, slack), "votes")
            score = {"majority": lambda right, rival: low(right, alpha), "runner-up":
                     lambda right, rival: (low(right, alpha / 2) + low(n - rival, alpha / 2)) / 2}
            right, rival, others = count[label], np.delete(count, label).max(), np.delete(first, label, 1).max(1)
            pairs = [(first[i, label], others[j]) for i, j in ((0, 0), (1, 2), (2, 1))]
            rules = [max(score, key=lambda rule: score[rule](*pair)) for pair in pairs]
            need(given["rule"] in rules and count.sum() == n, f"{given['rule']} of {count.sum()}, not {rules} of {n}")
            kept["votes"] = {"right": int(right), "rule": given["rule"],
                             "rivals": [one for one in rivals if one["label"] != names[label]]}
            own = [unit * score[given["rule"]](right, rival) * (1 - 1e-12) if right > rival else None]
        elif answer["certificate"] == "half-space":
            close, above, kept["tests"], random, own = 1e-5, 1e-5, counted["tests"], np.random.default_rng(0), []
            given = {test["row"]: (test["form"], {one["row"]: one["share"] for one in test["positives"]})
                     for test in kept["tests"]}
            alike = lambda one, other: one[0] == other[0] and one[1].keys() == other[1].keys() and all(
                abs(share - other[1][row]) <= 41 for row, share in one[1].items())
            for attempt in range(9):  # what the last digits decide may come out either way
                moved = [part + attempt * 1e-6 * bound * random.uniform(-1, 1, part.shape) for part in rows]
                found, tests = half_space(gallery, label, *moved, unit, alpha, bound,
                                          fixed["encoder"]["components"] == "non-negative", noise["top_k"])
                agree = found is None or tests.keys() == given.keys() and all(alike(tests[b], given[b]) for b in tests)
                own += [found] if agree else []
                if agree and (radius is None or found is not None and abs(found - radius) <= close * radius): break
            need(own, "the tests of dangerous rows are not those that the pilot chooses")
        else:
            kept["bound"], stated = counted["bound"], np.array([*map(float, counted["bound"]["embedding"])])
            need(stated.shape == h.shape and np.linalg.norm(stated - h) <= 1e-6 * np.linalg.norm(h), "the embedding")
            same(kept["bound"], {"constant": text(claimed)}, "bound")
            rounding, reach = float(kept["bound"]["forward_error"]), reach_of(gallery, label, h, answer["certificate"])
            need(error / 9 <= rounding <= error * 9, f"the forward error is {rounding}, wanted about {error}")
            own = [None if reach is None else (reach - 2 * error) / L * (1 - 8 * EPS) - 8 * EPS * abs(reach)]
        told = [("misretrieved" if one is None else "certified" if one > 0 else "abstained", one) for one in own]
        need(any(verdict == name and (radius in (None, one) or one * (1 - close) <= radius <= one * (1 + above))
                 for name, one in told), f"{verdict} {radius}, wanted {told[0][0]} {told[0][1]}")
        wanted = {"certificate": answer["certificate"], "label": names[label], "verdict": verdict, "decision": None,
                  "samples": n, "radius": text(radius) if verdict == "certified" else None, "counted": kept,
                  "statement": statement(answer, radius, fixed, config["input"])}
        same(answer, wanted | {key: "nothing" for key in answer.keys() - wanted.keys()}, "answer")
    opened = noise and {"seed": str(seed), "salt": opened["salt"]}
    same(receipt, {"receipt": 1, "drawn": drawn, "opened": opened}, "receipt")
    fields = {"receipt", "fixed", "commitment", "opened", "drawn", "answers", "digest", "signature"}
    need(set(receipt) == fields, f"fields {set(receipt) ^ fields}")
    said = ", ".join(f"{one['certificate']} {one['label']} {one['verdict']} {one['radius']}" for one in answers)
    return said + ("" if receipt["signature"] is None else " (the signature was not checked)")

def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("receipt", help="a receipt, or a folder of them")
    parser.add_argument("--model", required=True, help="the ONNX file, with its `encoder.toml` beside it")
    parser.add_argument("--gallery", required=True, help="its folder")
    parser.add_argument("--picture", required=True, help="the picture, or a folder that has it under any name")
    given, worst = parser.parse_args(), 0
    walk = lambda path: [path for path in sorted([Path(path), *Path(path).rglob("*")]) if not path.is_dir()]
    try:
        pictures, model = {sha(path.read_bytes()): path for path in walk(given.picture)}, Path(given.model)
        runs = [model.read_bytes(), onnxruntime.InferenceSession(model), settings(tomllib.loads(
            model.with_name("encoder.toml").read_text("utf-8"))), Gallery(given.gallery)]
    except Exception as reason: return print(f"cannot be used: {type(reason).__name__}: {reason}") or 2
    for path in walk(given.receipt):
        wanted = None
        try:
            content = path.read_bytes()
            wanted = json.loads(content)["fixed"]["picture"]["file"]
            need(wanted in pictures, "no picture has the digest of the receipt")
            status, said = 0, "verified: " + check(content, pictures[wanted].read_bytes(), *runs)
        except (Declined, OSError) as reason: status, said = 2, f"cannot be checked here: {reason}"
        except Refused as reason: status, said = 1, f"refused: {reason}"
        except Exception as reason:
            status, said = (1, "refused, malformed") if wanted else (2, "cannot be used")
            said += f": {type(reason).__name__}: {reason}"
        print(f"{path}: {said}", flush=True)
        worst = max(worst, status)
    return worst
if __name__ == "__main__":
    sys.exit(main())
