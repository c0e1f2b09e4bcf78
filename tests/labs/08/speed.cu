/*
 * speed - how fast versions of attend are on a GPU: one line for each, with the part of what a
 * kernel reaches that only reads, and a hash of the result. tests/labs/lab runs it twice, with the
 * project's versions and with the learner's kernels, and sorts the lines by time.
 *
 *     speed NAME VERSION...
 */
#include "tests/bench/paged_rotation.h"

static const double most_seconds = 1; /* for one line: a plain kernel takes milliseconds a call */

/* FNV-1a (Fowler, Noll, Vo) of y. */
static uint64_t hash_of(const struct rotation *r) {
    std::vector<unsigned char> host(r->q_bytes);
    uint64_t hash = 0xcbf29ce484222325u;
    dev->ops->download(dev, host.data(), r->y, r->q_bytes);
    for (unsigned char byte : host)
        hash = (hash ^ byte) * 0x100000001b3u;
    return hash;
}

/* n sequences of so many positions, one new token each; pages of 16. */
static void measure(int n, int length, const char *name, int version) {
    struct rotation r = start(std::vector<int>((size_t)n, length), 1, 16);
    auto attend_one = [&](int i) { attend_plain(&r, i); };
    use_version("attend", version);
    double once = seconds(1, attend_one);
    int burst = (int)fmin(4 + most_seconds / REPEATS / 4 / once, (double)r.plans.size());
    double s = graph_seconds(burst, attend_one);
    double tbs = (double)r.positions * KV_HEADS * 2 * (2 * DIM + 1) / s / 1e12;
    printf("%2d x %d %10.1f us %7.3f TB/s %5.1f %% of reading  %016llx  %s %d\n", n, length,
           s * 1e6, tbs, tbs / read_tbs * 100, (unsigned long long)hash_of(&r), name, version);
    end(&r);
}

int main(int argc, char **argv) {
    open_gpu();
    bench_read();
    for (int i = 2; i < argc; i++)
        for (int n : {1, 8})
            measure(n, 4096, argv[1], atoi(argv[i]));
    return 0;
}
