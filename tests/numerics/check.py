"""Holds the implementation in Python (rules.py, model.py) against the test vectors.

    python3 -B tests/numerics/check.py data/numerics            every line
    python3 -B tests/numerics/check.py data/numerics --breaks   each rule broken (breaks.py), one at
                                                                a time: is every break noticed?

The exit status is 1 if a line differs, or a break is not noticed. data/numerics/README.md says what
the lines hold.
"""
import json
import os
import sys
import types

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import breaks  # noqa: E402
import model  # noqa: E402
import rules  # noqa: E402
from floats import f32, f64  # noqa: E402
from xxh3 import xxh3  # noqa: E402


def floats(text):
    return [f32(int(word, 16)) for word in text.split()]


def double(text):
    return f64(int(text, 16))


def single(text):
    return floats(text)[0]


def words(text):
    return [int(word, 16) for word in text.split()]


def hexadecimal(row):
    return " ".join(map(str, row))


def cut(row, n):
    return [row[i:i + n] for i in range(0, len(row), n)]


# ---- what each kind of line must give: functions of a line that return the outputs by name ------

class Lines:
    """The lines of one file; what a line needs of earlier ones is kept here."""

    def __init__(self, rules, models, folder):
        self.rules, self.models_module, self.folder = rules, models, folder
        self.caches, self.logits, self.models, self.pending = {}, None, {}, []

    def function(self, line):
        f = getattr(self.rules, line["op"])
        return {"y": hexadecimal(f(x) for x in floats(line["x"]))}

    exp = silu = tanh = log = function

    def probability(self, line):
        largest, binary = single(line["largest"]), single(line["binary"])
        return {"p": hexadecimal(self.rules.probability(u, largest, binary)
                                 for u in floats(line["u"]))}

    def unit(self, line):
        natural, binary = self.rules.unit(line["e"], double(line["scale"]))
        return {"natural": str(natural), "binary": str(binary)}

    def snap(self, line):
        q, e = self.rules.snap(floats(line["x"]))
        return {"q": q, "e": e}

    def embed(self, line):
        rows = zip(cut(line["q"], line["n"]), line["e"])
        return {"y": hexadecimal(y for q, e in rows for y in self.rules.embed(q, e))}

    def linear(self, line):
        matrix = list(zip(cut(line["w"], line["k"]), line["f"]))
        bias = floats(line["bias"]) if "bias" in line else None
        return {"y": hexadecimal(self.rules.linear((line["x"], line["e"]), matrix, bias))}

    def rmsnorm(self, line):
        y = self.rules.rmsnorm(floats(line["x"]), floats(line["gain"]), double(line["eps"]))
        return {"y": hexadecimal(y)}

    def add(self, line):
        f = getattr(self.rules, line["op"])
        return {"y": hexadecimal(f(floats(line["a"]), floats(line["b"])))}

    silu_mul = add

    def rope(self, line):
        y = self.rules.rope(*(floats(line[name]) for name in ("x", "cos", "sin")))
        return {"y": hexadecimal(y)}

    def frequencies(self, line):
        numbers = [double(line[name]) if name in line else None
                   for name in ("factor", "low_freq_factor", "high_freq_factor")]
        f = self.rules.frequencies(line["head_dim"], double(line["theta"]), line["scaling"],
                                   *numbers, line.get("original_max_position_embeddings"))
        return {"f": hexadecimal(f)}

    def rotation(self, line):
        c, s = self.rules.rotation(floats(line["f"]), line["position"])
        return {"cos": hexadecimal(c), "sin": hexadecimal(s)}

    def store(self, line):
        scale = single(line.get("scale", "3f800000"))
        stored, e = self.rules.store(line["type"], floats(line["x"]), scale)
        return {"stored": stored} if e is None else {"stored": stored, "e": e}

    def load(self, line):
        row = self.rules.load(line["type"], (line["stored"], line.get("e")))
        if row is None:
            raise self.rules.Fault
        return {"q": row[0], "exponent": row[1]}

    # ---- attention ----

    def cache(self, line):
        rows = []
        for part in "kv":
            stored = cut(line[part], line["dim"])
            e = line.get(part + "e", [None] * len(stored))
            rows.append([self.rules.load(line["type"], row) for row in zip(stored, e)])
        self.caches[line["name"]] = (rows[0], rows[1], single(line.get("k_scale", "3f800000")),
                                     single(line.get("v_scale", "3f800000")))
        return {}

    def attention(self, line):
        r = self.rules
        keys, values, k_scale, v_scale = self.caches[line["cache"]]
        n = line["length"]
        optional = {name: single(line[name]) for name in ("cap", "slope", "sink") if name in line}
        mask = [int(x) for x in line["mask"]] if "mask" in line else None
        variant = r.Variant(line.get("causal", 1), line.get("window"), mask=mask, **optional)
        scale = double(line["scale"]) * k_scale.to(rules.F64)
        state = r.attention_state(floats(line["q"]), keys[:n], values[:n], scale, variant,
                                  line["at"])
        if "m" in line:
            m, l, o = state
            return {"o": hexadecimal(o), "m": str(m), "l": str(l)}
        return {"y": hexadecimal(r.result(state, v_scale)), "lse": str(r.lse(state))}

    def merge(self, line):
        r = self.rules
        with_m, with_l = single(line["with_m"]), single(line["with_l"])
        state = single(line["m"]), single(line["l"]), floats(line["o"])
        if with_m.bits != (-r.INFINITY).bits:
            state = r.merge(state, (with_m, with_l, floats(line["with_o"])))
        return {"merged_m": str(state[0]), "merged_l": str(state[1]),
                "merged_o": hexadecimal(state[2]),
                "y_times_0.75": hexadecimal(r.result(state, f32(0x3F400000))),
                "lse_2": str(r.lse(state, 2))}

    # ---- sampling ----

    def philox(self, line):
        block = self.rules.philox(words(line["key"]), words(line["counter"]))
        return {"block": " ".join("%08x" % x for x in block)}

    def random(self, line):
        y = self.rules.random_integer(int(line["seed"], 16), line["sample"], line["position"],
                                      int(line["below"], 16))
        return {"y": "%016x" % y}

    def how(self, line):
        return dict(temperature=single(line["temperature"]), top_k=line["top_k"],
                    top_p=single(line["top_p"]), seed=int(line["seed"], 16), sample=line["sample"])

    def row_of_logits(self, line):
        self.logits = floats(line["x"])
        return {}

    def draw(self, line):
        return {"id": self.rules.draw(self.logits, position=line["position"], **self.how(line))}

    def weights(self, line):
        row = self.logits[:len(line["w"])]
        largest = row[0]
        for x in row:
            largest = x if x > largest else largest
        return {"w": [self.rules.weight(x, largest, single(line["temperature"])) for x in row]}

    def logprobs(self, line):
        return {"y": hexadecimal(self.rules.logprobs(self.logits))}

    def fingerprints(self, line):
        each = [x.to_bytes(8, "little") for x in words(line["each"])]
        y = int.from_bytes(each[0], "little") if len(each) == 1 else xxh3(b"".join(each))
        return {"run": "%016x" % y}

    # ---- models ----

    def model(self, line):
        name = line["name"]
        if name not in self.models:
            folder = os.path.join(self.folder, "models", name)
            self.models[name] = self.models_module.Model(folder)
        self.sequence = self.models_module.Sequence(self.models[name], line["cache"])
        self.pending = self.sequence.write(line["prompt"], line["n_new"], **self.how(line))
        return {}

    def token(self, line):
        logits, id = self.pending.pop(0)
        return {"logits": hexadecimal(logits), "id": id,
                "logprob": str(self.rules.logprobs(logits)[id])}

    def answer(self, line):
        return {"fingerprint": "%016x" % self.models_module.fingerprint([self.sequence])}


def difference(lines, line):
    """What is wrong with a line, or None."""
    op = line["op"]
    try:
        got = getattr(lines, "row_of_logits" if op == "logits" else op)(line)
    except lines.rules.Fault:
        return None if "fault" in line else "a fault"
    if "fault" in line:
        return "no fault"
    for name, y in got.items():
        if y != line[name]:
            return "%s is %s" % (name, str(y)[:300])
    return None


def read_lines(path):
    with open(path) as file:
        lines = [json.loads(text) for text in file]
    if lines[0].get("samebits numerics") != rules.VERSION:
        sys.exit("%s is not of version %d of the rules" % (path, rules.VERSION))
    return lines[1:]


def first_difference(modules, folder, path, only=None):
    """(line number, op, what) or None. modules: rules and model; only: the kinds of lines to look
    at, short contexts first, where a difference is found soonest."""
    lines = Lines(*modules, folder)
    numbered = list(enumerate(read_lines(path)))
    if only:
        numbered = [x for x in numbered if x[1]["op"] in only]
        numbered.sort(key=lambda x: x[1].get("length", 0))
    for i, line in numbered:
        what = difference(lines, line)
        if what:
            return i + 2, line["op"], what
    return None


FILES = ["functions", "ops", "rope", "caches", "attention", "sampling", "models"]


def check_all(folder):
    failed = 0
    for name in FILES:
        path = os.path.join(folder, name + ".jsonl")
        found = first_difference((rules, model), folder, path)
        if found:
            failed += 1
            print("%s:%d: %s: %s" % (path, *found))
    print("%d files of test vectors, %d with differences" % (len(FILES), failed))
    return failed


def broken(original, old, new):
    """A module with one piece of its text replaced."""
    with open(original.__file__) as file:
        text = file.read()
    if text.count(old) != 1:
        sys.exit("breaks.py: %r is %d times in %s" % (old, text.count(old), original.__file__))
    module = types.ModuleType(original.__name__)
    exec(compile(text.replace(old, new), "broken", "exec"), module.__dict__)
    return module


def check_breaks(folder):
    survived = 0
    for name, only, old, new in breaks.BREAKS:
        path = os.path.join(folder, name + ".jsonl")
        try:
            modules = ((rules, broken(model, old, new)) if name == "models" else
                       (broken(rules, old, new), model))
            found = first_difference(modules, folder, path, only)
        except Exception as error:  # a broken rule may be no program any more
            found = error
        if not found:
            survived += 1
            print("nobody notices in %s: %s -> %s" % (path, old, new))
    print("%d rules broken, %d not noticed" % (len(breaks.BREAKS), survived))
    return survived


if __name__ == "__main__":
    check = check_breaks if sys.argv[2:] == ["--breaks"] else check_all
    sys.exit(check(sys.argv[1]) > 0)
