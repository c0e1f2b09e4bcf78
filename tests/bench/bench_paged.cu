/*
 * bench_paged - attention over a paged cache: 32 query heads, 8 kv heads, dimension 128, pages in
 * random order. Each time is the median of REPEATS replays of a CUDA graph in which batches take
 * turns whose caches together are several times the L2 cache. The limit beside it, from the same
 * run, is a kernel that only reads. Bytes counted: mantissas and exponents of all keys and values.
 *
 *     bench_paged            decode, every version; mixed lengths; page sizes; prefill
 *     bench_paged BxN ...    version 4 for B sequences of N positions; BxN+T: with T new tokens
 *                            behind them; mixed: of 1 to 8192;
 *                            prefill: prompts, and parts of prompts behind what is cached
 *
 * paged_beside_pytorch.py runs it beside PyTorch.
 */
#include "tests/bench/paged_rotation.h"

static double time_of(struct rotation *r) {
    int burst = (int)r->plans.size() < 4 ? 4 : (int)r->plans.size();
    return graph_seconds(burst, [&](int i) { attend_plain(r, i); });
}

static void print_decode(const char *what, int version, double s, size_t positions) {
    double bytes = (double)positions * KV_HEADS * 2 * (2 * DIM + 1);
    printf("%-22s %7d %10.1f %8.2f %8.0f %%\n", what, version, s * 1e6, bytes / s / 1e12,
           bytes / s / 1e12 / read_tbs * 100);
    fflush(stdout);
}

static void decode(const char *what, const std::vector<int> &lengths, int page_size, int first) {
    struct rotation r = start(lengths, 1, page_size);
    for (int v = first; v <= 4; v++) {
        use_version("attend", v);
        print_decode(what, v, time_of(&r), r.positions);
    }
    end(&r);
}

/* n sequences of so many positions, the last n_tokens of which are new. */
static void prompts(int n, int length, int n_tokens) {
    struct rotation r = start(std::vector<int>((size_t)n, length), n_tokens, 16);
    use_version("attend", 4);
    double s = time_of(&r), before = length - n_tokens;
    double seen = n_tokens * (before + (n_tokens + 1) / 2.0) * n;
    double bytes = (double)r.positions * KV_HEADS * 2 * (2 * DIM + 1);
    printf("%9d %10d %10d %10.1f %8.1f %8.2f\n", n, length, n_tokens, s * 1e6,
           4.0 * seen * HEADS * DIM / s / 1e12, bytes / s / 1e12);
    fflush(stdout);
    end(&r);
}

static void prefill(void) {
    static const int cases[][3] = {
        {1, 4096, 4096}, {16, 4096, 4096}, {16, 512, 512},  {64, 128, 128}, {256, 32, 32},
        {1, 16384, 16},  {1, 16384, 128},  {1, 16384, 512}, {16, 4096, 16}, {16, 4096, 128}};
    printf("\ncausal, pages of 16\nsequences  positions new tokens         us  TFLOP/s     TB/s\n");
    for (const int *c : cases)
        prompts(c[0], c[1], c[2]);
}

/* Lengths from 1 to 8192, 64 of them, as many positions as 64 x 4096. */
static std::vector<int> mixed_lengths(void) {
    std::vector<int> lengths;
    int left = 64 * 4096;
    for (int i = 0; i < 64; i++) {
        int length = i < 63 ? 1 + i * 130 : left;
        lengths.push_back(length);
        left -= length;
    }
    std::shuffle(lengths.begin(), lengths.end(), std::mt19937(12));
    return lengths;
}

static void heading(const char *what) {
    printf("\n%-22s version         us     TB/s  of a read\n", what);
}

int main(int argc, char **argv) {
    static const int cases[][2] = {{1, 1024},  {1, 4096},  {1, 32768}, {8, 4096},
                                   {64, 1024}, {64, 4096}, {256, 1024}};
    open_gpu();
    bench_read();
    heading("sequences x positions");
    for (int i = 1; i < argc; i++) {
        int n = 0, length = 0, n_tokens = 0;
        if (!strcmp(argv[i], "mixed")) {
            decode("64 of 1 ... 8192", mixed_lengths(), 16, 4);
            continue;
        }
        if (!strcmp(argv[i], "prefill")) {
            prefill();
            continue;
        }
        int fields = sscanf(argv[i], "%dx%d+%d", &n, &length, &n_tokens);
        check(n > 0 && (fields == 2 ? length > 0 : fields == 3 && length >= 0 && n_tokens > 0),
              argv[i]);
        if (fields == 3)
            prompts(n, length + n_tokens, n_tokens);
        else
            decode(argv[i], std::vector<int>((size_t)n, length), 16, 4);
    }
    if (argc > 1)
        return 0;
    for (const int *c : cases) {
        char what[40];
        snprintf(what, sizeof what, "%d x %d", c[0], c[1]);
        decode(what, std::vector<int>((size_t)c[0], c[1]), 16, c[0] * c[1] > 100000 ? 2 : 1);
    }
    decode("64 of 1 ... 8192", mixed_lengths(), 16, 4);
    heading("page size, 64 x 4096");
    for (int size : {1, 16, 64, 256}) {
        char what[40];
        snprintf(what, sizeof what, "%d", size);
        decode(what, std::vector<int>(64, 4096), size, 4);
    }
    prefill();
    return 0; /* the process ends; its device memory goes with it */
}
