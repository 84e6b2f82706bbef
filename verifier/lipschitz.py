"""Answers without noise: the ONNX graph in f64, its Lipschitz constant and its rounding (theory, section 14)."""
import functools, math, re
import numpy as np
EPS, VARINT = 2.0**-52, re.compile(rb"[\x80-\xff]*[\x00-\x7f]")
class Refused(Exception): """The receipt is not what the computation gives."""
class Declined(Exception): """The receipt, or a file, cannot be checked here."""

def need(condition, reason, error=Refused):
    if not condition: raise error(reason)

def integer(data, at=0):  # of variable length, and the place behind it
    end = VARINT.match(data, at).end()
    value = sum((byte & 127) << 7 * place for place, byte in enumerate(data[at:end]))
    return value - (value >> 63 << 64), end

def message(data):  # the fields of a protobuf message: lists of integers or of byte strings
    found, at = {}, 0
    while at < len(data):
        key, at = integer(data, at)
        value, at = integer(data, at) if key & 7 in (0, 2) else ({1: 8, 5: 4}[key & 7], at)
        if key & 7: value, at = data[at:at + value], at + value
        found.setdefault(key >> 3, []).append(value)
    return found

@functools.lru_cache(None)
def graph_of(model):  # tensors by name; operator, inputs, output and attributes of each node; the graph's output
    names = lambda one, field: [part.decode() for part in one.get(field, [])]
    listed = lambda parts: [one for part in parts for one in (
        [part] if isinstance(part, int) else [integer(data)[0] for data in VARINT.findall(part)])]
    graph, tensors, nodes = message(message(model)[7][0]), {}, []
    for one in map(message, graph[5]):
        need(one[2][0] in (1, 7) and 9 in one, "tensors in other files, or not of f32 or integers", Declined)
        values = np.frombuffer(one[9][0], "<f4").astype(float) if one[2][0] == 1 else np.frombuffer(one[9][0], "<i8")
        tensors[names(one, 8)[0]] = values.reshape(listed(one.get(1, [])))
    for one in map(message, graph[1]):
        said = {names(part, 1)[0]: part[3][0] if 3 in part else listed(part.get(8, []))
                for part in map(message, one.get(5, []))}
        need(names(one, 7) in ([], [""]), "operators of another domain", Declined)
        nodes.append((names(one, 4)[0], names(one, 1), names(one, 2)[0], said))
    return tensors, nodes, names(message(graph[12][0]), 1)[0]

@functools.lru_cache(None)
def residual_norm(model, kernel, scale):  # at least that of D^1/2 A D^1/2, |A| the autocorrelations over all offsets
    K, D = graph_of(model)[0][kernel], graph_of(model)[0].get(scale, np.ones(1)).ravel()
    (outputs, _, rows, columns), q, best = K.shape, np.ones(len(K)), math.inf
    cut = lambda y, x: K[:, :, max(y, 0):rows + min(y, 0), max(x, 0):columns + min(x, 0)].reshape(outputs, -1)
    A = sum(np.abs(cut(y, x) @ cut(-y, -x).T) for y in range(1 - rows, rows) for x in range(1 - columns, columns))
    A += K.size * EPS * np.outer(*[np.linalg.norm(K.reshape(outputs, -1), axis=1)] * 2)
    for _ in range(2000):  # the largest (D A q)_i / q_i, for the best q that is found
        after = D * (A @ q)
        q, best = np.maximum((q + after / after.max()) / 2, 1e-200), min(best, (after / q).max())
    return best * (1 + len(A) * 4 * EPS)

def convolve(x, K, stride, pads):
    x = np.pad(x, ((0, 0), (0, 0), pads[::2], pads[1::2]))
    windows = np.lib.stride_tricks.sliding_window_view(x, K.shape[2:], (2, 3))[:, :, ::stride[0], ::stride[1]]
    return np.moveaxis(np.tensordot(windows, K, ((1, 4, 5), (1, 2, 3))), 3, 1)

def network(model, config, pixels):
    """The embedding, its constant L, and its forward error at pictures of norm N, as (a, b) of a N + b.
    `size` and `error` bound what a value's norm and rounding can be, in the same form; `one` is the constant 1."""
    need({*config["input"]["std"], 1} == {1} and {*config["input"]["mean"], 0} == {0}, "mean and std", Declined)
    (tensors, rest, output), one = graph_of(model), np.array([0, 1.0])
    x, L, size, error, gamma = pixels[None].astype(float), 1.0, one[::-1], 0 * one, lambda terms: terms * EPS / (
        2 - terms * EPS)
    at, fields = next(one for one in rest[0][1] if one not in tensors), {"kernel_shape", "strides", "pads", "group"}
    while rest:  # the graph is one chain of layers
        (operator, inputs, name, said), *rest = rest
        known, stride, pads = [*map(tensors.get, inputs[1:])], said.get("strides", [1, 1]), said.get("pads", [0] * 4)
        factor, local, shift = 1.0, 0 * one, 0 * one  # what the layer does to L, to the error and to the norm
        need(inputs[0] == at and not any(part is None for part in known), f"the node {name}", Declined)
        if operator == "Conv" and [node[0] for node in rest[:4]] == ["Relu", "Mul", "ConvTranspose", "Sub"]:
            # x - K^T D relu(K x + b): the same K twice, in the same place, and a diagonal D of at most 2/T
            (relu, mul, back, sub), rest = rest[:4], rest[4:]
            (K, bias), D, wired = known, tensors[mul[1][1]], [relu[1], mul[1][0], back[1], sub[1], back[3], stride]
            need(wired == [[name], relu[2], [mul[2], inputs[1]], [at, back[2]], said, [1, 1]] and set(said) <= fields
                 and said.get("group", 1) == 1 and D.shape == (1, len(K), 1, 1) and D.min() >= 0,
                 f"{sub[2]} is no residual layer")
            inner = D * np.maximum(convolve(x, K, stride, pads) + bias.reshape(1, -1, 1, 1), 0)
            turned = [side - 1 - pad for side, pad in zip(K.shape[2:] * 2, pads)]
            value = x - convolve(inner, K[:, :, ::-1, ::-1].swapaxes(0, 1), stride, turned)
            beta, most = residual_norm(model, inputs[1], mul[1][1]), D.max()
            norm = math.sqrt(residual_norm(model, inputs[1], ""))
            need(beta <= 2.00001 and value.shape == x.shape, f"{sub[2]}: |D^1/2 K|^2 may be {beta}, wanted 2")
            spread = math.sqrt(np.abs(K).sum((1, 2, 3)).max() * np.abs(K).sum((0, 2, 3)).max()) * (1 + K.size * EPS)
            shift, factor, name = np.linalg.norm(bias) * math.sqrt(x[0, 0].size) * one, max(1.0, beta - 1), sub[2]
            first = gamma(K[0].size + 2) * (spread * (size + error) + shift)  # rounding of each step, and its norm
            inner, x = norm * (size + error) + shift + first, value
            local = norm * most * (first + gamma(1) * inner) + gamma(K[:, 0].size + 1) * spread * most * inner
            local, shift = local + gamma(2) * (size + error + norm * most * inner), norm * most * shift
        elif operator in ("Conv", "Gemm") and set(said) <= fields | {"transB"}:
            (K, bias), group = (known + [np.zeros(1)])[:2], said.get("group", 1)
            K = K if operator == "Conv" else (K if said.get("transB") else K.T)[:, :, None, None]
            K = np.einsum("gh,goiyx->gohiyx", np.eye(group), K.reshape(group, -1, *K.shape[1:]))
            K = K.reshape(-1, group * K.shape[3], *K.shape[4:])  # of all channels, with zeros outside of its group
            need(K.shape[2] <= stride[0] and K.shape[3] <= stride[1], "windows that overlap", Declined)
            value = convolve(x.reshape(x.shape + (1,) * (4 - x.ndim)), K, stride, pads)
            factor = np.linalg.norm(K.reshape(len(K), -1), 2) * (1 + 1e-12) + K.size * EPS
            bias = np.broadcast_to(bias.reshape(1, -1, 1, 1), value.shape)
            x, shift = (value + bias).reshape(value.shape[:x.ndim]), np.linalg.norm(bias) * one
            local = gamma(K[0].size + 2) * (np.linalg.norm(K) * (size + error) + shift)
        else:
            moves = {"Relu": lambda: np.maximum(x, 0), "Transpose": lambda: x.transpose(said["perm"]),
                     "Flatten": lambda: x.reshape(len(x), -1), "Pad": lambda: np.pad(x, known[0].reshape(2, -1).T),
                     "Reshape": lambda: x.reshape([side or x.shape[place] for place, side in enumerate(known[0])])}
            need(operator in moves and set(said) <= {"perm", "axis"} and said.get("axis", 1) == 1 and len(known) < 2,
                 f"the operator {operator} with {said} without noise", Declined)
            x = moves[operator]()
        at, L, size, error = name, L * factor, size * factor + shift, error * factor + local + 1e-290 * one
    need(at == (config["output"].get("name") or output), "an output in the middle of the graph", Declined)
    return x.ravel(), L * (1 + 1e-13), error * (1 + 1e-9)

def reach_of(gallery, answer, h, name):
    """How far the embedding may move, less what rounding takes (theory, 14.2 and 14.4); None if it is wrong."""
    right, V = gallery.label[gallery.seen] == answer, gallery.vectors
    distance, right, wrong = np.linalg.norm(V - h, axis=1), gallery.seen[right], gallery.seen[~right]
    near, far, slop, reach = distance[right].min(initial=math.inf), distance[wrong].min(), (len(h) + 16) * EPS, math.inf
    if not near < far: return None
    if name == "lipschitz-margin": return (far - near) / 2 - 2 * slop * (far + near)
    for b in wrong:
        apart, middle = V[right] - V[b], (V[right] + V[b]) / 2
        gap, away = np.linalg.norm(apart, axis=1) + 1e-300, np.linalg.norm(h - middle, axis=1)
        lost = slop * (away + np.linalg.norm(middle, axis=1) + (away + distance[b])**2 / gap + gap)
        reach = min(reach, (((h - middle) * apart).sum(1) / gap - lost).max())
    return reach
