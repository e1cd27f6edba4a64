"""The right answers for attention modules: NumPy float64 only, score by score, with explicit
indices. `p` maps the names of a module's parameters to arrays; `keep` [B, Q, K] says which keys a
query sees. Query i stands at position i + K - Q."""

import math

import numpy as np


def linear(p, name, x):
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def heads(x, count):
    """[B, S, H * D] to [B, H, S, D]."""
    return np.moveaxis(x.reshape(*x.shape[:-1], count, -1), -2, -3)


def merged(x):
    return np.moveaxis(x, -3, -2).reshape(x.shape[0], x.shape[2], -1)


def softmax(scores, keep):
    """Over the keys that a query sees; zeros if there are none."""
    out = np.zeros(scores.shape)
    for b, h, i in np.ndindex(*scores.shape[:3]):
        seen = keep[b, i]
        if seen.any():
            e = np.exp(scores[b, h, i, seen] - scores[b, h, i, seen].max())
            out[b, h, i, seen] = e / e.sum()
    return out


def clipped(distance, left, right):
    return min(max(distance, -left), right) + left


def shaw(q, k, v, a, b, left, right, keep):
    """Output [B, H, Q, D], weights and scores. b None: no term of the values."""
    (batch, count, length, dim), keys = q.shape, k.shape[2]
    scores = np.empty((batch, count, length, keys))
    for n, h, i, j in np.ndindex(*scores.shape):
        r = clipped(j - (i + keys - length), left, right)
        scores[n, h, i, j] = q[n, h, i] @ (k[n, h, j] + a[r]) / math.sqrt(dim)
    weights, out = softmax(scores, keep), np.zeros(q.shape)
    for n, h, i, j in np.ndindex(*scores.shape):
        r = clipped(j - (i + keys - length), left, right)
        out[n, h, i] += weights[n, h, i, j] * (v[n, h, j] + (0 if b is None else b[r]))
    return out, weights, scores


def relative_self_attention(x, p, count, left, right, keep):
    q, k, v = (heads(linear(p, f"linear_{n}", x), count) for n in "qkv")
    a, b = p["distance_embedding.weight"], p.get("value_embedding.weight")
    return linear(p, "linear_out", merged(shaw(q, k, v, a, b, left, right, keep)[0]))


def bert_relative_attention(x, p, count, max_positions, form, keep):
    q, k, v = (heads(linear(p, n, x), count) for n in ("query", "key", "value"))
    scores = np.empty((*q.shape[:3], q.shape[2]))
    for n, h, i, j in np.ndindex(*scores.shape):
        r = p["distance_embedding.weight"][i - j + max_positions - 1]
        score = q[n, h, i] @ k[n, h, j] + q[n, h, i] @ r
        score += k[n, h, j] @ r if form == "relative_key_query" else 0
        scores[n, h, i, j] = score / math.sqrt(q.shape[3])
    return linear(p, "out", merged(softmax(scores, keep) @ v))


def sinusoid(distance, dim, convention):
    """The vector of one distance."""
    angles = [distance * 10000.0 ** (-2 * i / dim) for i in range(dim // 2)]
    sin, cos = [math.sin(a) for a in angles], [math.cos(a) for a in angles]
    if convention == "concatenated":
        return np.array(sin + cos)
    return np.array([part for pair in zip(sin, cos, strict=True) for part in pair])


def transformer_xl_scores(q, k, u, v, w, convention, clamp_len=None):
    """`w` [H, D, d_model] projects the sinusoid of a distance; u and v are [H, D]."""
    (batch, count, length, dim), keys = q.shape, k.shape[2]
    scores = np.empty((batch, count, length, keys))
    for n, h, i, j in np.ndindex(*scores.shape):
        distance = i + keys - length - j
        if clamp_len is not None:
            distance = min(max(distance, -clamp_len), clamp_len)
        r = w[h] @ sinusoid(distance, w.shape[2], convention)
        score = (q[n, h, i] + u[h]) @ k[n, h, j] + (q[n, h, i] + v[h]) @ r
        scores[n, h, i, j] = score / math.sqrt(dim)
    return scores


def transformer_xl_attention(x, memory, p, count, convention, clamp_len, keep):
    every = np.concatenate([memory, x], 1)
    q = heads(linear(p, "linear_q", x), count)
    k, v = (heads(linear(p, f"linear_{n}", every), count) for n in "kv")
    w = p["linear_pos.weight"].reshape(count, -1, x.shape[2])
    biases = p["pos_bias_u"], p["pos_bias_v"]
    scores = transformer_xl_scores(q, k, *biases, w, convention, clamp_len)
    return linear(p, "linear_out", merged(softmax(scores, keep) @ v))


def log_bucket(distance, buckets, longest):
    """Exact up to half of the buckets, then ever wider ones."""
    middle = buckets // 2
    if abs(distance) <= middle:
        return distance
    steps = math.log(abs(distance) / middle) / math.log((longest - 1) / middle) * (middle - 1)
    nearest = round(steps)  # an exact step is not to become the next one by rounding
    up = nearest if abs(steps - nearest) < 1e-9 else math.ceil(steps)
    return int(math.copysign(up + middle, distance))


def deberta_attention(x, p, count, longest, buckets, terms, share, table, keep):
    names = ("query_proj", "key_proj") if share else ("pos_query_proj", "pos_key_proj")
    q, k, v = (heads(linear(p, f"{n}_proj", x), count) for n in ("query", "key", "value"))
    qr = heads(linear(p, names[0], table), count) if "p2c" in terms else None
    kr = heads(linear(p, names[1], table), count) if "c2p" in terms else None
    span = buckets or longest
    scores = np.empty((*q.shape[:3], q.shape[2]))
    for n, h, i, j in np.ndindex(*scores.shape):
        distance = log_bucket(i - j, buckets, longest) if buckets else i - j
        r = min(max(distance + span, 0), 2 * span - 1)
        score = q[n, h, i] @ k[n, h, j]
        score += 0 if kr is None else q[n, h, i] @ kr[h, r]
        score += 0 if qr is None else k[n, h, j] @ qr[h, r]
        scores[n, h, i, j] = score / math.sqrt(q.shape[3] * (1 + len(terms)))
    y = merged(softmax(scores, keep) @ v)
    return linear(p, "out", y) if "out.weight" in p else y


def rotated(x, offset, width, interleaved):
    """Pairs of the first `width` channels, by position times 10000 ** (-2 c / width)."""
    out = x.copy()
    for n, h, i in np.ndindex(*x.shape[:3]):
        for c in range(width // 2):
            one, two = (2 * c, 2 * c + 1) if interleaved else (c, c + width // 2)
            angle = (i + offset[n]) * 10000.0 ** (-2 * c / width)
            s, t = x[n, h, i, one], x[n, h, i, two]
            out[n, h, i, one] = s * math.cos(angle) - t * math.sin(angle)
            out[n, h, i, two] = t * math.cos(angle) + s * math.sin(angle)
    return out


def rotary_attention(x, p, count, kv_count, offset, width, interleaved, rotate_values, keep):
    """width 0: no rotation."""
    q = heads(linear(p, "q_proj", x), count)
    k, v = (heads(linear(p, f"{n}_proj", x), kv_count) for n in "kv")
    q, k = rotated(q, offset, width, interleaved), rotated(k, offset, width, interleaved)
    v = rotated(v, offset, width, interleaved) if rotate_values else v
    shared = [h * kv_count // count for h in range(count)]  # the keys and values of each head
    scores = q @ np.swapaxes(k[:, shared], 2, 3) / math.sqrt(q.shape[3])
    weights = softmax(scores, keep)
    return linear(p, "o_proj", merged(weights @ v[:, shared])), weights


def alibi_attention(x, p, count, kv_count, slopes, seen, added=0.0):
    """The output, and the weights; `seen` is [B, S, S], `added` broadcasts to [B, H, S, S]."""
    width = x.shape[-1]
    dim = width // count
    kv = kv_count * dim
    q, k, v = np.split(linear(p, "qkv", x), [width, width + kv], -1)
    q, k, v = heads(q, count), heads(k, kv_count), heads(v, kv_count)
    k, v = (np.repeat(t, count // kv_count, 1) for t in (k, v))
    i = np.arange(x.shape[1])
    bias = -np.asarray(slopes, np.float64)[:, None, None] * np.abs(i[:, None] - i)
    weights = softmax(q @ np.swapaxes(k, 2, 3) / dim**0.5 + bias + added, seen)
    return linear(p, "out", merged(weights @ v)), weights
