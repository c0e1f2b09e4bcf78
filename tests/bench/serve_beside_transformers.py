#!/usr/bin/env python3
"""bench_serve on the shapes of Qwen3-0.6B and Llama-3-8B beside Hugging Face transformers.

transformers: random weights in bf16, static cache, greedy, the decode step compiled by torch.compile
where that works. A prompt of 24 tokens; the time of a step is the difference between two lengths of
generation, so that the prompt and the compiler do not count. The first token of prompts: a forward
pass that is not compiled, as transformers does it. The weights are random on both sides:
only the speed means anything.

    python3 tests/bench/serve_beside_transformers.py [path of bench_serve [shape ...]]
"""
import re
import statistics
import subprocess
import sys
import time

import torch
import transformers

PROMPT, SHORT, LONG, REPEATS, FIRST_TOKENS = 24, 20, 120, 3, 9
SHAPES = {
    "qwen3-0.6b": transformers.Qwen3Config(
        num_hidden_layers=28, hidden_size=1024, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, intermediate_size=3072, vocab_size=151936, tie_word_embeddings=True,
        max_position_embeddings=8192),
    "llama-3-8b": transformers.LlamaConfig(
        num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=14336, vocab_size=128256, tie_word_embeddings=False,
        max_position_embeddings=8192),
}


def step_seconds(model, n, compiled):
    """Seconds of one decode step of n sequences."""
    ids = torch.randint(10, 4000, (n, PROMPT), device="cuda")

    def generate(count):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count,
                       min_new_tokens=count, do_sample=False, cache_implementation="static",
                       max_cache_len=PROMPT + LONG, disable_compile=not compiled, pad_token_id=0)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    for count in (SHORT, LONG):
        generate(count)
    short = min(generate(SHORT) for _ in range(REPEATS))
    return (min(generate(LONG) for _ in range(REPEATS)) - short) / (LONG - SHORT)


def first_seconds(model, n, length):
    """Seconds until the first token of n prompts: median of some forward passes."""
    ids, times = torch.randint(10, 4000, (n, length), device="cuda"), []
    for _ in range(1 + FIRST_TOKENS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.no_grad():
            model(ids, use_cache=True, logits_to_keep=1).logits.argmax(-1).cpu()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def main():
    bench = sys.argv[1] if len(sys.argv) > 1 else "build/gpu/bench/bench_serve"
    for name in sys.argv[2:] or SHAPES:
        text = subprocess.run([bench, name], capture_output=True, text=True, check=True).stdout
        print(text, flush=True)
        decoding, prompts = text.split("first token ms")
        ours = {int(n): float(tps)
                for n, tps in re.findall(r"^ *(\d+) +\d+ +(\d+) ", decoding, re.M)}
        first = re.findall(r"^ *(\d+) +(\d+) +([\d.]+) ", prompts, re.M)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            model = transformers.AutoModelForCausalLM.from_config(SHAPES[name]).eval()
        model.generation_config.eos_token_id = None
        print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}, bf16\n")
        print("sequences  ours tok/s  compiled tok/s  not compiled tok/s")
        for n in (1, 8, 64, 256):
            line = f"{n:9} {ours[n]:11.0f}"
            for compiled in (True, False):
                try:
                    rate = f"{n / step_seconds(model, n, compiled):.0f}"
                except Exception as error:  # what is compiled depends on the machine's compilers
                    rate = type(error).__name__
                line += f" {rate:>15}" if compiled else f" {rate:>19}"
            print(line, flush=True)
        print("\n  prompts  of tokens  ours ms  transformers ms")
        for n, length, ms in first:
            theirs = 1e3 * first_seconds(model, int(n), int(length))
            print(f"{n:>9} {length:>10} {ms:>8} {theirs:16.3f}", flush=True)
        print()
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
