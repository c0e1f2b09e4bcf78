#!/usr/bin/env python3
"""bench_paged beside PyTorch's scaled_dot_product_attention on the same GPU, minutes apart at most.

PyTorch: bf16, contiguous K and V, cuDNN, grouped heads without copies, CUDA graph replay, medians;
K and V of several batches take turns, 1 GiB together. Both read two bytes for each element of K and V.

    python3 tests/bench/paged_beside_pytorch.py [path of bench_paged [its arguments]]
"""
import re
import statistics
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention

HEADS, KV_HEADS, DIM, REPEATS = 32, 8, 128, 21


def median_of_graph(calls):
    """Seconds of one call: all of them are captured in a graph, which is replayed."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for i in range(REPEATS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i >= 2:
            times.append(begin.elapsed_time(end) / 1e3 / len(calls))
    return statistics.median(times)


def pytorch_seconds(n, length, qo_len=1):
    size = n * length * KV_HEADS * DIM * 4
    copies = min(256, (1 << 30) // size + 1)
    kv = [torch.randn(2, n, KV_HEADS, length, DIM, device="cuda", dtype=torch.bfloat16)
          for _ in range(copies)]
    q = torch.randn(n, HEADS, qo_len, DIM, device="cuda", dtype=torch.bfloat16)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        calls = [lambda x=x: attention(q, x[0], x[1], is_causal=qo_len > 1, enable_gqa=True)
                 for x in kv]
        return median_of_graph(calls * (4 if copies < 4 else 1))


def main():
    bench = sys.argv[1] if len(sys.argv) > 1 else "build/gpu/bench/bench_paged"
    text = subprocess.run([bench, *sys.argv[2:]], capture_output=True, text=True, check=True).stdout
    print(text, flush=True)
    print(f"PyTorch {torch.__version__}\n")
    print("sequences x positions   ours us  PyTorch us  ratio")
    for n, length in re.findall(r"^(\d+) ?x ?(\d+) +4 ", text, re.M):
        ours = float(re.search(rf"^{n} ?x ?{length} +4 +([\d.]+)", text, re.M)[1])
        theirs = pytorch_seconds(int(n), int(length)) * 1e6
        print(f"{n + ' x ' + length:22} {ours:9.1f} {theirs:11.1f} {ours / theirs:6.2f}", flush=True)
    print("\nprefill, causal          ours us  PyTorch us  our share")
    for n, length, new, ours in re.findall(r"^ +(\d+) +(\d+) +(\d+) +([\d.]+) +[\d.]+ +[\d.]+$",
                                           text, re.M):
        if new != length:
            continue
        theirs = pytorch_seconds(int(n), int(length), int(length)) * 1e6
        share = theirs / float(ours) * 100
        print(f"{n + ' x ' + length:22} {float(ours):9.1f} {theirs:11.1f} {share:8.1f} %", flush=True)


if __name__ == "__main__":
    main()
