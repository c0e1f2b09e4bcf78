"""samebits numerics 1 in Python's integers, written from tutorials/numerics-1.md alone.

It follows the page section by section, as plainly as possible, and knows nothing of the engine.
Numbers are Floats (floats.py); a row is a list of them, or integers with an exponent.
"""
from floats import F32, F64, f32, f64, fma, number, power_of_2, rint

VERSION = 1


class Fault(Exception):
    pass


def floats(text):
    return [f32(int(word, 16)) for word in text.split()]


ONE, TWO, ZERO, INFINITY = f32(0x3F800000), f32(0x40000000), f32(0), f32(0x7F800000)
NAN = f32(0x7FC00000)


def to_float(n, exponent=0):
    """float() of the page: n * 2^exponent."""
    return number(F32, n, exponent)


def scaled_integer(x, shift):
    """rint(x * 2^shift), of the exact product."""
    n, e = x.exact()
    return rint(n, e + shift)


# ---- 2. BFP16 ----------------------------------------------------------------------------------

MOST, LEAST_EXPONENT, MOST_EXPONENT = 32639, -100, 127


def smallest_exponent(row, bits, most):
    """The smallest e >= -100 for which rint(max |x| * 2^(bits-e)) <= most."""
    if not all(x.is_finite() for x in row):
        raise Fault("not finite")
    n, exponent = max((abs(x) for x in row), key=lambda x: x.bits).exact()
    e = LEAST_EXPONENT
    if n:  # no smaller one can be it: the product would be far above
        e = max(e, n.bit_length() + exponent - 1)
    while rint(n, exponent + bits - e) > most:
        e += 1
    if e > MOST_EXPONENT:
        raise Fault("too large")
    return e


def snap(row):
    e = smallest_exponent(row, 15, MOST)
    return [scaled_integer(x, 15 - e) for x in row], e


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


# ---- 3. Functions ------------------------------------------------------------------------------

SHIFT = f32(0x4B400000)
LOG2_E, LN2_HIGH, LN2_LOW = f32(0x3FB8AA3B), f32(0xBF317218), f32(0x3102E308)


def polynomial(r, coefficients):
    q = coefficients[0]
    for c in coefficients[1:]:
        q = fma(q, r, c)
    return q


def integer_of(shifted):
    """The integer that adding SHIFT has left."""
    return shifted.bits - SHIFT.bits


EXP = floats("3ab511e7 3c091d10 3d2aac79 3e2aaa49 3efffffe 3f800000 3f800000")


def exp(x):
    if x.is_nan():
        return NAN
    if x < f32(0xC2D20000):  # -105
        x = f32(0xC2D20000)
    if x > f32(0x42B20000):  # 89
        x = f32(0x42B20000)
    shifted = fma(x, LOG2_E, SHIFT)
    whole = shifted - SHIFT
    r = fma(whole, LN2_HIGH, x)
    r = fma(whole, LN2_LOW, r)
    n = integer_of(shifted)
    a = n // 2
    return polynomial(r, EXP) * power_of_2(F32, a) * power_of_2(F32, n - a)


def silu(x):
    return x / (ONE + exp(-x))


TANH = floats("394f34f3 3ab69d1c 3c08896e 3d2aaa7c 3e2aaaaa 3f000000")


def tanh(x):
    if x.is_nan():
        return NAN
    y = abs(x) * TWO if abs(x) < f32(0x41140000) else f32(0x41940000)  # 9.25, 18.5
    shifted = fma(y, LOG2_E, SHIFT)
    whole = shifted - SHIFT
    r = fma(whole, LN2_HIGH, y)
    r = fma(whole, LN2_LOW, r)
    curve = (r * r) * polynomial(r, TANH)
    e = r + curve
    e_rest = curve - (e - r)
    h = power_of_2(F32, -integer_of(shifted))
    above = ONE + h
    below = above - TWO * h
    top = below + e
    top_rest = (e - (top - below)) + e_rest
    bottom = above + e
    bottom_rest = (e - (bottom - above)) + e_rest
    inverse = ONE / bottom
    t = top * inverse
    rest = fma(-t, bottom, top) + fma(-t, bottom_rest, top_rest)
    t = fma(rest, inverse, t)
    return -abs(t) if x.is_negative() else abs(t)


LOG = floats("be03e44a 3e0f33c6 bdf9997c 3e0f6b31 be2ace22 3e4ce822 be7fff7e 3eaaaa83 bf000000")


def log(x):
    if x.is_nan() or x < ZERO:
        return NAN
    if x.magnitude() == 0:
        return -INFINITY
    if x.is_infinite():
        return x
    by = 23 if x < power_of_2(F32, -126) else 0
    steps = (x * power_of_2(F32, by)).bits - 0x3F2AAAAB + (1 << 30)
    k = to_float((steps >> 23) - 128 - by)
    f = f32(0x3F2AAAAB + (steps & 0x7FFFFF)) - ONE
    q = polynomial(f, LOG)
    whole = k * f32(0x3F317200)
    low = fma(f * f, q, k * f32(0x35BFBE8E))
    total = whole + f
    return total + ((f - (total - whole)) + low)


TOP = f32(0x3F7E0000)  # 127/128
PROBABILITY_SHIFT = f32(0x47BFFF81)
PROBABILITY = floats("4a1d0165 47e4fe26 457601bc 42b17096 3f800000")


def probability(u, largest, binary):
    base = fma(-largest, binary, TOP)
    if -ONE < base and base < ONE:
        x = fma(u, binary, base)
    else:
        x = fma(u - largest, binary, TOP)
    if not x > ZERO:  # or a NaN
        x = ZERO
    if x > ONE:
        x = ONE
    shifted = x + PROBABILITY_SHIFT
    r = x - (shifted - PROBABILITY_SHIFT)
    return f32((polynomial(r, PROBABILITY).bits + (shifted.bits << 23)) & 0xFFFFFFFF)


# ---- 5. Operations -----------------------------------------------------------------------------

def embed(q, e):
    return [to_float(n, e - 15) for n in q]


def linear(x, matrix, bias=None):
    """x: a snapped row; matrix: snapped rows."""
    q, e = x
    y = [to_float(dot(q, w), e + f - 30) for w, f in matrix]
    return [a + b for a, b in zip(y, bias)] if bias else y


def add(x, y):
    return [a + b for a, b in zip(x, y)]


def silu_mul(g, u):
    return [silu(a) * b for a, b in zip(g, u)]


def rmsnorm(x, gain, eps):
    q, e = snap(x)
    mean = number(F64, dot(q, q), 2 * (e - 15)) / number(F64, len(x))
    factor = (number(F64, 1) / (mean + eps).sqrt()).to(F32)
    return [(a * factor) * g for a, g in zip(x, gain)]


# ---- 6. Rotation -------------------------------------------------------------------------------

def int64(n):
    return number(F64, n)


def log64(x):
    n, e = x.exact()
    k = n.bit_length() + e
    m = number(F64, n, -n.bit_length())
    if m < f64(0x3FE6A09E667F3BCD):
        m = int64(2) * m
        k -= 1
    s = (m - int64(1)) / (m + int64(1))
    s2 = s * s
    total = int64(0)
    for i in range(25, 0, -2):
        total = total * s2 + int64(1) / int64(i)
    low = fma(int64(k), f64(0x3C7ABC9E3B39803F), (int64(2) * s) * total)
    return fma(int64(k), f64(0x3FE62E42FEFA39EF), low)


def rint64(x):
    return rint(*x.exact())


def exp64(y):
    n = rint64(y * f64(0x3FF71547652B82FE))
    r = fma(int64(n), -f64(0x3FE62E42FEFA39EF), y)
    r = fma(int64(n), -f64(0x3C7ABC9E3B39803F), r)
    total = int64(1)
    for i in range(16, 0, -1):
        total = int64(1) + (total * r) / int64(i)
    return total * power_of_2(F64, n)


def cos_sin64(x):
    n = rint64(x * f64(0x3FE45F306DC9C883))
    r = fma(int64(n), -f64(0x3FF921FB54442D18), x)
    r = fma(int64(n), -f64(0x3C91A62633145C07), r)
    r = fma(int64(n), f64(0x391F1976B7ED8FBC), r)
    r2 = r * r
    cosine = sine = int64(1)
    for i in range(18, 0, -2):
        cosine = int64(1) - (cosine * r2) / int64(i * (i - 1))
        sine = int64(1) - (sine * r2) / int64(i * (i + 1))
    sine = sine * r
    return [(cosine, sine), (-sine, cosine), (-cosine, -sine), (sine, -cosine)][n % 4]


def llama3(f, factor, low_freq, high_freq, original):
    """factor, low_freq, high_freq: float64; original: an integer."""
    low, high, context = low_freq.to(F32), high_freq.to(F32), to_float(original)
    factor = factor.to(F32)
    wave = f32(0x40C90FDB) / f
    if wave > (int64(original) / low_freq).to(F32):
        return f / factor
    if not wave < (int64(original) / high_freq).to(F32):
        smooth = (context / wave - low) / (high - low)
        return ((ONE - smooth) * f) / factor + smooth * f
    return f


def frequencies(head_dim, theta, scaling="default", factor=None, low_freq=None, high_freq=None,
                original=None):
    out = []
    log_theta = log64(theta)
    for i in range(head_dim // 2):
        part = to_float(2 * i) / to_float(head_dim)
        power = exp64(log_theta * part.to(F64)).to(F32)
        f = ONE / power
        if scaling == "linear":
            f = f / factor.to(F32)
        elif scaling == "llama3":
            f = llama3(f, factor, low_freq, high_freq, original)
        out.append(f)
    return out


def rotation(frequencies, position):
    """The cosines and the sines of a position."""
    pairs = [cos_sin64((to_float(position) * f).to(F64)) for f in frequencies]
    return [c.to(F32) for c, s in pairs], [s.to(F32) for c, s in pairs]


def rope(head, cosines, sines):
    half = len(head) // 2
    pairs = list(zip(head[:half], head[half:], cosines, sines))
    return [a * c - b * s for a, b, c, s in pairs] + [b * c + a * s for a, b, c, s in pairs]


# ---- 7. Attention ------------------------------------------------------------------------------

TILE = 256


class Variant:
    """What may change in attention; one row of a mask is a list of 0 and 1."""

    def __init__(self, causal=True, window=None, cap=None, slope=None, sink=None, mask=None):
        self.causal, self.window, self.cap = causal, window, cap
        self.slope, self.sink, self.mask = slope, sink, mask


def sees(variant, at, j):
    if variant.mask is not None:
        if not variant.mask[j]:
            return False
    elif variant.causal and j > at:
        return False
    return variant.window is None or j >= at - variant.window


def floor_256(n):
    return n // 256 * 256


def changed(s, variant, at, j):
    if variant.cap:
        s = variant.cap * tanh(s / variant.cap)
    if variant.slope:
        s = s + variant.slope * to_float(j - at)
    return s


def unit(eq, scale):
    """natural and binary of a query row."""
    natural = power_of_2(F64, eq + 8) * scale
    return natural, (natural * f64(0x3F871547652B82FE)).to(F32)


def tile_state(q, eq, keys, values, scale, variant, at, positions):
    """m, l and o of a tile, of which the row sees these positions."""
    natural, binary = unit(eq, scale)
    u = []
    for j in positions:
        k, ek = keys[j]
        u.append(to_float(floor_256(dot(q, k))) * power_of_2(F32, ek - 38))
    if variant.cap or variant.slope:
        u = [changed((s.to(F64) * natural).to(F32), variant, at, j) for s, j in zip(u, positions)]
        natural, binary = int64(1), f32(0x3C38AA3B)
    largest = u[0]
    for s in u:
        if s.is_nan():
            raise Fault("a score is a NaN")
        if s > largest:
            largest = s
    m = (largest.to(F64) * natural).to(F32)
    if not (m.is_finite() and binary.is_finite()) or binary < ZERO:
        raise Fault("no softmax")
    p = [probability(s, largest, binary) for s in u]
    l = to_float(sum(scaled_integer(x, 23) for x in p)) * power_of_2(F32, -23)
    w = []
    for x, j in zip(p, positions):
        n, e = x.exact()
        w.append(number(F64, n, e + values[j][1]))
    w, ew = snap(w)
    o = []
    for d in range(len(values[positions[0]][0])):
        h = floor_256(sum(x * values[j][0][d] for x, j in zip(w, positions)))
        o.append(to_float(h) * power_of_2(F32, ew - 30))
    return m, l, o


def merge(state, tile):
    (m, l, o), (m1, l1, o1) = state, tile
    top = m if m > m1 else m1
    a, b = exp(m - top), exp(m1 - top)
    return top, fma(l1, b, l * a), [fma(y, b, x * a) for x, y in zip(o, o1)]


def attention_state(query, keys, values, scale, variant, at, begin=0, end=None):
    """m, l and o of one row over positions begin ... end - 1; keys, values: [(integers, exponent)],
    None for one that cannot be read; scale: float64."""
    q, eq = snap(query)
    dim = len(query)
    state = -INFINITY, ZERO, [ZERO] * dim
    seen = [j for j in range(begin, len(keys) if end is None else end) if sees(variant, at, j)]
    if any(keys[j] is None or values[j] is None for j in seen):
        raise Fault("a row cannot be read")
    if any(x is not None and not x.is_finite() for x in (variant.slope, variant.sink)):
        raise Fault("a slope or a sink is not finite")
    for tile in range(0, len(keys), TILE):
        positions = [j for j in seen if tile <= j < tile + TILE]
        if positions:
            state = merge(state, tile_state(q, eq, keys, values, scale, variant, at, positions))
    if variant.sink is not None:
        state = merge(state, (variant.sink, ONE, [ZERO] * dim))
    return state


def result(state, v_scale=ONE):
    m, l, o = state
    y = [x / l for x in o] if l > ZERO else o
    return y if v_scale.bits == ONE.bits else [x * v_scale for x in y]


def lse(state, base=None):
    m, l, _ = state
    x = m + log(l) if l > ZERO else -INFINITY
    return x * LOG2_E if base == 2 else x


def model_scale(head_dim):
    return int64(1) / int64(head_dim).sqrt()


# ---- 8. Caches ---------------------------------------------------------------------------------

class Small:
    """A format of few bits: exponent and mantissa bits, bias, bits of the largest number."""

    def __init__(self, exponent, mantissa, bias, largest):
        self.exponent, self.mantissa, self.bias, self.largest = exponent, mantissa, bias, largest
        self.sign = 1 << (exponent + mantissa)

    def nearest(self, x):
        """The bits; beyond the largest: the largest."""
        sign = self.sign if x.is_negative() else 0
        if x.is_infinite():
            return sign | self.largest
        n, e = abs(x).exact()
        least = 1 - self.bias - self.mantissa  # exponent of the smallest number
        unit = max(n.bit_length() + e - 1 - self.mantissa, least)
        bits = rint(n, e - unit) + ((unit - least) << self.mantissa if n else 0)
        return sign | min(bits, self.largest)

    def value(self, bits):
        """The number, or None for a NaN or an infinity."""
        magnitude = bits & (self.sign - 1)
        if magnitude > self.largest:
            return None
        field, m = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        if field:
            m |= 1 << self.mantissa
            field -= 1
        x = to_float(m, field + 1 - self.bias - self.mantissa)
        return -x if bits & self.sign else x


SMALL = {"e4m3": Small(4, 3, 7, 0x7E), "e5m2": Small(5, 2, 15, 0x7B),
         "fp16": Small(5, 10, 15, 0x7BFF), "bf16": Small(8, 7, 127, 0x7F7F)}
LIMIT = {"fp16": f32(0x477FF000), "bf16": f32(0x7E800000)}  # 65520, 2^126


def store(kind, row, scale=ONE):
    """(bits or integers, exponent or None)."""
    if kind == "bfp16":
        return snap(row)
    if kind == "bfp8":
        e = smallest_exponent(row, 7, 127)
        return [scaled_integer(x, 7 - e) for x in row], e
    if not all(x.is_finite() for x in row):
        raise Fault("not finite")
    if kind in LIMIT and any(not abs(x) < LIMIT[kind] for x in row):
        raise Fault("too large")
    if kind in ("e4m3", "e5m2"):
        row = [x / scale for x in row]
    return [SMALL[kind].nearest(x) for x in row], None


def load(kind, stored):
    """Integers and exponent, or None for a row that cannot be read."""
    q, e = stored
    if kind == "bfp16":
        return q, e
    if kind == "bfp8":
        return [256 * n for n in q], e
    row = [SMALL[kind].value(bits) for bits in q]
    try:
        return None if None in row else snap(row)
    except Fault:
        return None


# ---- 9. Drawing a token ------------------------------------------------------------------------

def philox(key, counter):
    x0, x1, x2, x3 = counter
    k0, k1 = key
    mask = 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = (b >> 32) ^ x1 ^ k0, b & mask, (a >> 32) ^ x3 ^ k1, a & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return x0, x1, x2, x3


def random_integer(seed, sample, position, below):
    x = philox((seed & 0xFFFFFFFF, sample), (position, seed >> 32, 0, 0))
    return ((x[1] << 32) + x[0]) * below >> 64


def weight(logit, largest, temperature):
    return scaled_integer(exp((logit - largest) / temperature), 30)


def by_likelihood(logits):
    """Ids, the largest logit first, the lowest id first of equal ones."""
    return sorted(range(len(logits)), key=lambda i: (-logits[i].key(), i))


def kept(logits, w, top_k, top_p):
    """The ids that may be drawn, ascending."""
    if not 1 <= top_k < len(logits) and not top_p < ONE:
        return range(len(logits))
    ids = by_likelihood(logits)
    if top_k:
        ids = ids[:top_k]
    n, e = (top_p.to(F64) * int64(sum(w[i] for i in ids))).exact()
    enough = n << e if e >= 0 else -(-n >> -e)
    total = 0
    for count, i in enumerate(ids):
        total += w[i]
        if total >= enough:
            return sorted(ids[:count + 1])
    return sorted(ids)


def draw(logits, temperature, top_k=0, top_p=ONE, seed=0, sample=0, position=0):
    if not all(x.is_finite() for x in logits):
        raise Fault("a logit is not finite")
    best = by_likelihood(logits)[0]
    if temperature.magnitude() == 0:
        return best
    w = [weight(x, logits[best], temperature) for x in logits]
    ids = kept(logits, w, top_k, top_p)
    r = random_integer(seed, sample, position, sum(w[i] for i in ids))
    total = 0
    for i in ids:
        total += w[i]
        if total > r:
            return i


# ---- 10. Log-probabilities ---------------------------------------------------------------------

def logprobs(logits):
    """Of every token."""
    largest = logits[by_likelihood(logits)[0]]
    total = int64(0)
    for x in logits:
        total = total + exp(x - largest).to(F64)
    log_sum = log(total.to(F32))
    return [(x - largest) - log_sum for x in logits]
