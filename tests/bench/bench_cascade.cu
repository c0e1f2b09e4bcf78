/*
 * bench_cascade - sequences that share their beginning: 32 query heads, 8 kv heads, dimension 128,
 * pages of 16, one query each. Medians of REPEATS replays of a CUDA graph; see paged_rotation.h.
 *
 *     copies   each sequence has its own copy of the beginning, as without a prefix cache
 *     single   the same pages, read by each sequence for itself (attention_plan, version 1)
 *     shared   read once for all (version 2)
 *
 *     bench_cascade                 a table of numbers of sequences and shared positions
 *     bench_cascade N S L           N sequences that share S of L positions
 */
#include "tests/bench/paged_rotation.h"

static double time_of(int n, int shared, int length, enum plan_version version) {
    use_version("attention_plan", (int)version);
    struct rotation r = start(std::vector<int>((size_t)n, length), 1, 16, NULL, shared);
    int burst = (int)r.plans.size() < 4 ? 4 : (int)r.plans.size();
    double s = graph_seconds(burst, [&](int i) { attend_plain(&r, i); });
    end(&r);
    return s;
}

static void row(int n, int shared, int length) {
    double copies = time_of(n, 0, length, PLAN_SINGLE);
    double single = time_of(n, shared, length, PLAN_SINGLE);
    double together = time_of(n, shared, length, PLAN_SHARES);
    double rows = (double)n * HEADS * shared;
    printf("%9d %7d %7d %9.1f %9.1f %9.1f %8.2f %8.2f %8.0f\n", n, shared, length, copies * 1e6,
           single * 1e6, together * 1e6, copies / together, single / together,
           4 * rows * DIM / together / 1e12);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int n = argc == 4 ? atoi(argv[1]) : 1, shared = argc == 4 ? atoi(argv[2]) : 0,
        length = argc == 4 ? atoi(argv[3]) : 1;
    if ((argc != 1 && argc != 4) || n < 1 || shared < 0 || length <= shared) {
        fprintf(stderr, "usage: bench_cascade [N S L]: N sequences that share S of L positions, "
                        "fewer than all\n");
        return 2;
    }
    open_gpu();
    bench_read();
    printf("\nsequences  shared      of    copies    single    shared   copies:  single:  TFLOP/s\n"
           "                               us        us        us   shared   shared\n");
    if (argc == 4) {
        row(n, shared, length);
        return 0;
    }
    for (int n_sequences : {2, 4, 8, 16, 32, 64, 128})
        for (int beginning : {256, 1024, 8192})
            row(n_sequences, beginning, beginning + 256);
    return 0; /* the process ends; its device memory goes with it */
}
