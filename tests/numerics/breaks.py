"""Each rule broken: (file of test vectors, kinds of lines of which one must notice, a piece of text
of rules.py, what takes its place)."""

def last_bits(file, ops, text, words):
    """The breaks that make each of these words in a piece of text one more, or one less."""
    return [(file, ops, text, text.replace(word, "%0*x" % (len(word), int(word, 16) + d)))
            for word in words.split() for d in (-1, 1)]


ATTENTION = ["cache", "attention"]
DRAW = ["logits", "draw"]
BREAKS = [
    # section 2
    ("ops", ["snap"], "MOST, LEAST_EXPONENT, MOST_EXPONENT = 32639,",
     "MOST, LEAST_EXPONENT, MOST_EXPONENT = 32767,"),
    ("ops", ["snap"], " = 32639, -100, 127", " = 32639, -126, 127"),
    ("ops", ["snap"], " = 32639, -100, 127", " = 32639, -100, 128"),
    ("ops", ["snap"], "    return [scaled_integer(x, 15 - e) for x in row], e",
     "    return [scaled_integer(x, 16 - e) // 2 for x in row], e"),
    # section 3
    ("functions", ["exp"], "3efffffe 3f800000 3f800000", "3f000000 3f800000 3f800000"),
    ("functions", ["exp"], "    r = fma(whole, LN2_HIGH, x)\n    r = fma(whole, LN2_LOW, r)",
     "    r = fma(whole, LN2_HIGH, x)"),
    ("functions", ["exp"], "* power_of_2(F32, a) * power_of_2(F32, n - a)",
     "* power_of_2(F32, max(n, -126)) * power_of_2(F32, n - max(n, -126))"),
    ("functions", ["exp"], "    if x < f32(0xC2D20000):  # -105",
     "    if x < f32(0xC2AE0000):"),
    ("functions", ["silu"], "return x / (ONE + exp(-x))", "return x * (ONE / (ONE + exp(-x)))"),
    ("functions", ["tanh"], "curve = (r * r) * polynomial(r, TANH)",
     "curve = r * (r * polynomial(r, TANH))"),
    ("functions", ["tanh"], "(e - (bottom - above)) + e_rest", "e - (bottom - above)"),
    ("functions", ["tanh"], "    t = fma(rest, inverse, t)", "    t = t + rest * inverse"),
    ("functions", ["tanh"], "below = above - TWO * h", "below = ONE - h"),
    ("functions", ["log"], "0x3F2AAAAB + (1 << 30)", "0x3F350000 + (1 << 30)"),
    ("functions", ["log"], "    by = 23 if", "    by = 0 if"),
    ("functions", ["log"], "((f - (total - whole)) + low)", "low"),
    ("functions", ["probability"], "if -ONE < base and base < ONE:", "if True:"),
    ("functions", ["probability"], "if -ONE < base and base < ONE:", "if False:"),
    # section 5
    ("ops", ["embed"], "[to_float(n, e - 15) for n in q]", "[to_float(n, e - 16) for n in q]"),
    ("ops", ["linear"], "to_float(dot(q, w), e + f - 30)",
     "to_float(dot(q, w)) * power_of_2(F32, e + f - 30)"),
    ("ops", ["linear"], "to_float(dot(q, w), e + f - 30)",
     "to_float(dot(q, w) // 256 * 256, e + f - 30)"),
    ("ops", ["linear"], "return [a + b for a, b in zip(y, bias)] if bias else y", "return y"),
    ("ops", ["rmsnorm"], "number(F64, dot(q, q), 2 * (e - 15))",
     "number(F32, dot(q, q), 2 * (e - 15)).to(F64)"),
    ("ops", ["rmsnorm"], "(mean + eps).sqrt()", "mean.sqrt()"),
    ("ops", ["rmsnorm"], "[(a * factor) * g for", "[a * (factor * g) for"),
    ("ops", ["add"], "def add(x, y):\n    return [a + b",
     "def add(x, y):\n    return [b + a + ZERO"),
    ("ops", ["silu_mul"], "[silu(a) * b for", "[a * b / (ONE + exp(-a)) for"),
    # section 6
    ("ops", ["rope"], "[a * c - b * s for", "[fma(a, c, -(b * s)) for"),
    ("ops", ["rope"], "[b * c + a * s for", "[fma(b, c, a * s) for"),
    ("rope", ["frequencies"], "range(25, 0, -2)", "range(7, 0, -2)"),
    ("rope", ["frequencies"], "range(16, 0, -1)", "range(5, 0, -1)"),
    ("rope", ["frequencies"], "log_theta * part.to(F64)", "(log_theta.to(F32) * part).to(F64)"),
    ("rope", ["frequencies"], "f = f / factor.to(F32)", "f = f * (ONE / factor.to(F32))"),
    ("rope", ["frequencies"], "((ONE - smooth) * f) / factor + smooth * f",
     "((ONE - smooth) / factor + smooth) * f"),
    ("rope", ["frequencies"], "f32(0x40C90FDB)", "f32(0x40C90FDC)"),
    ("rope", ["rotation"], "    r = fma(int64(n), -f64(0x3C91A62633145C07), r)\n", ""),
    ("rope", ["rotation"], "(-cosine, -sine), (sine, -cosine)",
     "(-cosine, -sine), (-sine, cosine)"),
    ("rope", ["rotation"], "range(18, 0, -2)", "range(8, 0, -2)"),
    ("rope", ["rotation"], "(to_float(position) * f).to(F64)",
     "(to_float(position).to(F64) * f.to(F64))"),
    # section 7
    ("attention", ATTENTION, "TILE = 256", "TILE = 128"),
    ("attention", ATTENTION, "TILE = 256", "TILE = 512"),
    ("attention", ATTENTION, "return n // 256 * 256", "return n"),
    ("attention", ATTENTION, "return n // 256 * 256", "return -(-n // 256) * 256"),
    ("attention", ATTENTION, "to_float(floor_256(dot(q, k))) *", "to_float(dot(q, k)) *"),
    ("attention", ATTENTION, "h = floor_256(sum(", "h = (sum("),
    ("functions", ["unit"], "return natural, (natural * f64(0x3F871547652B82FE)).to(F32)",
     "return natural, natural.to(F32) * f32(0x3C38AA3B)"),
    ("attention", ATTENTION, "(s.to(F64) * natural).to(F32)", "s * natural.to(F32)"),
    ("attention", ATTENTION, "m = (largest.to(F64) * natural).to(F32)",
     "m = largest * natural.to(F32)"),
    ("attention", ATTENTION, "scaled_integer(x, 23) for x in p",
     "scaled_integer(x, 22) * 2 for x in p"),
    ("attention", ATTENTION, "number(F64, n, e + values[j][1])", "number(F64, n, e)"),
    ("attention", ATTENTION, "binary < ZERO:", "False:"),
    ("attention", ATTENTION, "if not (m.is_finite() and", "if not (True and"),
    ("attention", ATTENTION, "raise Fault(\"a row cannot be read\")", "pass"),
    ("attention", ["cache", "attention", "merge"], "fma(l1, b, l * a)", "l1 * b + l * a"),
    ("attention", ATTENTION, "[fma(y, b, x * a) for", "[fma(x, a, y * b) for"),
    ("attention", ATTENTION, "for tile in range(0, len(keys), TILE):",
     "for tile in reversed(range(0, len(keys), TILE)):"),
    ("attention", ATTENTION, "    elif variant.causal and j > at:",
     "    elif variant.causal and j >= at:"),
    ("attention", ATTENTION, "j >= at - variant.window", "j > at - variant.window"),
    ("attention", ATTENTION,
     "        if not variant.mask[j]:\n            return False\n    elif",
     "        if not variant.mask[j]:\n            return False\n    if"),
    ("attention", ATTENTION, "variant.cap * tanh(s / variant.cap)",
     "variant.cap * tanh(s * (ONE / variant.cap))"),
    ("attention", ATTENTION, "to_float(j - at)", "to_float(j)"),
    ("attention", ATTENTION, "natural, binary = int64(1), f32(0x3C38AA3B)",
     "natural, binary = int64(1), f32(0x3C38AA3C)"),
    ("attention", ATTENTION, "(variant.sink, ONE, [ZERO] * dim)",
     "(variant.sink, ZERO, [ZERO] * dim)"),
    ("attention", ATTENTION, "[x * v_scale for x in y]", "y"),
    ("attention", ATTENTION, "    y = [x / l for x in o] if l > ZERO else o",
     "    y = [x * (ONE / l) for x in o] if l > ZERO else o"),
    ("attention", ATTENTION, "x = m + log(l) if", "x = log(l) if"),
    ("attention", ["merge"], "top = m if m > m1 else m1", "top = m1"),
    ("attention", ["merge"], "return x * LOG2_E if base == 2", "return x if base == 2"),
    # section 8
    ("caches", ["store"], "smallest_exponent(row, 7, 127)", "smallest_exponent(row, 7, 126)"),
    ("caches", ["store"], "[scaled_integer(x, 7 - e) for x in row], e",
     "[scaled_integer(x, 15 - e) >> 8 for x in row], e"),
    ("caches", ["store"], "row = [x / scale for x in row]",
     "row = [x * (ONE / scale) for x in row]"),
    ("caches", ["store"], "sign | min(bits, self.largest)", "sign | bits"),
    ("caches", ["store"], "sign = self.sign if x.is_negative() else 0", "sign = 0"),
    ("caches", ["store"], "unit = max(n.bit_length() + e - 1 - self.mantissa, least)",
     "unit = n.bit_length() + e - 1 - self.mantissa"),
    ("caches", ["store"], "f32(0x477FF000)", "f32(0x47800000)"),
    ("caches", ["store"], "f32(0x7E800000)", "f32(0x7F000000)"),
    ("caches", ["load"], "[256 * n for n in q], e", "[255 * n for n in q], e"),
    ("caches", ["load"], "    if magnitude > self.largest:\n            return None",
     "    pass"),
    ("caches", ["load"], "Small(4, 3, 7, 0x7E)", "Small(4, 3, 8, 0x7E)"),
    ("caches", ["load"], "Small(5, 2, 15, 0x7B)", "Small(5, 2, 16, 0x7B)"),
    # section 9
    ("sampling", ["philox"], "for _ in range(10):", "for _ in range(9):"),
    ("sampling", ["philox"], "0xBB67AE85", "0xBB67AE86"),
    ("sampling", ["random"], "(position, seed >> 32, 0, 0)", "(position, 0, 0, 0)"),
    ("sampling", ["random"], "((x[1] << 32) + x[0])", "((x[0] << 32) + x[1])"),
    ("sampling", DRAW, "* below >> 64", "% below"),
    ("sampling", ["logits", "weights"], "exp((logit - largest) / temperature), 30",
     "exp((logit - largest) / temperature), 29"),
    ("sampling", ["logits", "weights"], "(logit - largest) / temperature",
     "logit / temperature - largest / temperature"),
    ("sampling", DRAW, "key=lambda i: (-logits[i].key(), i)",
     "key=lambda i: (-logits[i].key(), -i)"),
    ("sampling", DRAW, "        ids = ids[:top_k]", "        ids = ids[:top_k + 1]"),
    ("sampling", DRAW, "if total >= enough:", "if total > enough:"),
    ("sampling", DRAW, "return sorted(ids[:count + 1])", "return ids[:count + 1]"),
    ("sampling", DRAW, "int64(sum(w[i] for i in ids))).exact()", "int64(sum(w))).exact()"),
    ("sampling", DRAW, "    for i in ids:\n        total += w[i]\n        if total > r",
     "    for i in reversed(ids):\n        total += w[i]\n        if total > r"),
    ("sampling", DRAW, "raise Fault(\"a logit is not finite\")", "pass"),
    # section 10
    ("sampling", ["logits", "logprobs"], "(x - largest) - log_sum", "x - (largest + log_sum)"),
    ("sampling", ["logits", "logprobs"], "        total = total + exp(x - largest).to(F64)",
     "        total = (total + exp(x - largest).to(F64)).to(F32).to(F64)"),
]

# Every constant of the functions, to the last bit. (The lower half of ln2 is left out: where its last
# bit shows, if anywhere, is not known.)
for op, coefficients in (
        ("exp", "3ab511e7 3c091d10 3d2aac79 3e2aaa49 3efffffe"),
        ("tanh", "394f34f3 3ab69d1c 3c08896e 3d2aaa7c 3e2aaaaa 3f000000"),
        ("log", "be03e44a 3e0f33c6 bdf9997c 3e0f6b31 be2ace22 3e4ce822 be7fff7e 3eaaaa83 bf000000"),
        ("probability", "4a1d0165 47e4fe26 457601bc 42b17096 3f800000")):
    BREAKS += last_bits("functions", [op], coefficients, coefficients)
BREAKS += last_bits("functions", ["exp"], "f32(0x3FB8AA3B), f32(0xBF317218)", "3FB8AA3B BF317218")
BREAKS += last_bits("functions", ["log"], "f32(0x3F317200)", "3F317200")
BREAKS += last_bits("functions", ["log"], "f32(0x35BFBE8E)", "35BFBE8E")
BREAKS += last_bits("functions", ["probability"], "f32(0x47BFFF81)", "47BFFF81")
BREAKS += last_bits("functions", ["probability"], "TOP = f32(0x3F7E0000)", "3F7E0000")
