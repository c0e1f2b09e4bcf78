"""A model of the page's sections 4, 5 and 11: read from a folder, and run one token at a time.

    python3 -B tests/numerics/model.py FOLDER N_NEW ID...   writes greedily: ids and fingerprint
"""
import json
import os
import struct
import sys

import rules
from floats import f32, f64
from xxh3 import xxh3


def decimal(x):
    """The float64 that Python reads a JSON number as."""
    return f64(struct.unpack("<Q", struct.pack("<d", x))[0])


# ---- 4. The model ------------------------------------------------------------------------------

def widen(dtype, data):
    size = {"F32": 4, "F16": 2, "BF16": 2}[dtype]
    words = [int.from_bytes(data[i:i + size], "little") for i in range(0, len(data), size)]
    if dtype == "F32":
        return [f32(w) for w in words]
    if dtype == "BF16":
        return [f32(w << 16) for w in words]
    return [rules.SMALL["fp16"].value(w) for w in words]


def read_tensors(path):
    """Names with (shape, dtype, bytes)."""
    with open(path, "rb") as file:
        data = file.read()
    n = int.from_bytes(data[:8], "little")
    header, data = json.loads(data[8:8 + n]), data[8 + n:]
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        out[name] = t["shape"], t["dtype"], data[begin:end]
    return out


def read_checkpoint(folder):
    """All tensors of a folder: one file, or shards with their index."""
    files = ["model.safetensors"]
    if not os.path.exists(folder + "/model.safetensors"):
        with open(folder + "/model.safetensors.index.json") as file:
            files = sorted(set(json.load(file)["weight_map"].values()))
    out = {}
    for name in files:
        out.update(read_tensors(os.path.join(folder, name)))
    return out


class Model:
    def __init__(self, folder):
        with open(folder + "/config.json") as file:
            c = json.load(file)
        self.tensors = read_checkpoint(folder)
        self.snapped = {}
        self.kind = c["architectures"][0]
        self.layers, self.hidden = c["num_hidden_layers"], c["hidden_size"]
        self.heads = c["num_attention_heads"]
        default = {"Llama": self.heads, "Mistr": 8}.get(self.kind[:5], 32)
        self.kv_heads = c.get("num_key_value_heads", default) or self.heads
        self.dim = c.get("head_dim") or (128 if self.kind.startswith("Qwen3")
                                         else self.hidden // self.heads)
        self.eps = decimal(c.get("rms_norm_eps") or 1e-6)
        scaling = c.get("rope_scaling") or c.get("rope_parameters") or {}
        theta = scaling.get("rope_theta") or c.get("rope_theta") or 10000
        self.frequencies = rules.frequencies(
            self.dim, decimal(theta), scaling.get("rope_type", scaling.get("type", "default")),
            *(decimal(scaling[name]) if name in scaling else None
              for name in ("factor", "low_freq_factor", "high_freq_factor")),
            scaling.get("original_max_position_embeddings"))
        llama, qwen3 = self.kind.startswith("Llama"), self.kind.startswith("Qwen3")
        attention = c.get("attention_bias", False) and (llama or qwen3)
        self.biased = {"q": attention or self.kind.startswith("Qwen2"), "o": attention}
        self.biased["k"] = self.biased["v"] = self.biased["q"]
        mlp = c.get("mlp_bias", False) and llama
        self.biased.update(gate=mlp, up=mlp, down=mlp)
        self.normed = qwen3
        self.embedding, self.output = "model.embed_tokens.weight", "lm_head.weight"
        if c.get("tie_word_embeddings"):
            if self.embedding not in self.tensors:
                self.embedding = self.output
            self.output = self.embedding

    def vector(self, name):
        return widen(*self.tensors[name][1:])

    def matrix(self, name):
        """Its snapped rows."""
        if name not in self.snapped:
            (n, _), dtype, data = self.tensors[name]
            row = len(data) // n
            self.snapped[name] = [rules.snap(widen(dtype, data[i * row:i * row + row]))
                                  for i in range(n)]
        return self.snapped[name]

    def linear(self, x, layer, part, block):
        name = "model.layers.%d.%s.%s_proj." % (layer, block, part)
        bias = self.vector(name + "bias") if self.biased[part] else None
        return rules.linear(rules.snap(x), self.matrix(name + "weight"), bias)

    def norm(self, x, name):
        return rules.rmsnorm(x, self.vector(name + ".weight"), self.eps)


# ---- 5. The forward pass -----------------------------------------------------------------------

class Sequence:
    """What is written so far, and the cache: a list of rows for each layer and KV head."""

    def __init__(self, model, kind="bfp16"):
        self.model, self.kind, self.position = model, kind, 0
        heads = [(i, h) for i in range(model.layers) for h in range(model.kv_heads)]
        self.keys = {place: [] for place in heads}
        self.values = {place: [] for place in heads}
        self.hashed = b""

    def heads_of(self, row):
        dim = self.model.dim
        return [row[i:i + dim] for i in range(0, len(row), dim)]

    def turned(self, heads, layer, part, table):
        m = self.model
        if m.normed:
            heads = [m.norm(x, "model.layers.%d.self_attn.%s_norm" % (layer, part)) for x in heads]
        return [rules.rope(x, *table) for x in heads]

    def attention(self, x, layer, table):
        m, at = self.model, self.position
        q, k, v = (self.heads_of(m.linear(x, layer, part, "self_attn")) for part in "qkv")
        q, k = self.turned(q, layer, "q", table), self.turned(k, layer, "k", table)
        for h in range(m.kv_heads):
            for rows, row in ((self.keys, k[h]), (self.values, v[h])):
                rows[layer, h].append(rules.load(self.kind, rules.store(self.kind, row)))
        out = []
        for h in range(m.heads):
            place = layer, h // (m.heads // m.kv_heads)
            state = rules.attention_state(q[h], self.keys[place], self.values[place],
                                          rules.model_scale(m.dim), rules.Variant(), at)
            out += rules.result(state)
        return m.linear(out, layer, "o", "self_attn")

    def ffn(self, x, layer):
        m = self.model
        g, u = m.linear(x, layer, "gate", "mlp"), m.linear(x, layer, "up", "mlp")
        return m.linear(rules.silu_mul(g, u), layer, "down", "mlp")

    def read(self, token, wanted):
        """Reads a token; the logits behind it if they are wanted."""
        m = self.model
        table = rules.rotation(m.frequencies, self.position)
        x = rules.embed(*m.matrix(m.embedding)[token])
        for i in range(m.layers):
            a = m.norm(x, "model.layers.%d.input_layernorm" % i)
            x = rules.add(x, self.attention(a, i, table))
            a = m.norm(x, "model.layers.%d.post_attention_layernorm" % i)
            x = rules.add(x, self.ffn(a, i))
        self.position += 1
        if not wanted:
            return None
        x = rules.snap(m.norm(x, "model.norm"))
        logits = rules.linear(x, m.matrix(m.output))
        self.hashed += b"".join(y.bits.to_bytes(4, "little") for y in logits)
        return logits

    def write(self, prompt, n_new, **how):
        """[(logits, id)] of n_new tokens behind a prompt; how: of rules.draw."""
        out, tokens = [], list(prompt)
        for i in range(len(prompt) + n_new - 1):
            logits = self.read(tokens[i], i >= len(prompt) - 1)
            if logits:
                tokens.append(rules.draw(logits, position=i + 1, **how))
                out.append((logits, tokens[-1]))
        return out


# ---- 11. Fingerprints --------------------------------------------------------------------------

def fingerprint(sequences):
    each = [xxh3(s.hashed) for s in sequences]
    if len(each) == 1:
        return each[0]
    return xxh3(b"".join(h.to_bytes(8, "little") for h in each))


if __name__ == "__main__":
    sequence = Sequence(Model(sys.argv[1]))
    answer = sequence.write([int(x) for x in sys.argv[3:]], int(sys.argv[2]),
                            temperature=rules.ZERO)
    print(*(id for _, id in answer), "fingerprint %016x" % fingerprint([sequence]))
