/*
 * Phase 1: the KV cache. Keys and values of the tokens read so far are kept, so a new token costs
 * one row of work. The table is phase 0's, for a cache that reserves everything and one that grows;
 * the fingerprints are phase 0's, too.
 */
#include "tutorials/common/contiguous.h"

/* The rows of one length, one per kind of cache. Both must have the same bits. */
static int measure_length(struct demo *demo, int n_new, struct error *err) {
    uint64_t bits[N_CONTIGUOUS];
    for (int k = 0; k < N_CONTIGUOUS; k++) {
        const struct cache_kind *kind = &contiguous_caches[k];
        json_t *row = demo_measure(demo, demo_prompt, n_new, kind, &bits[k], err);
        if (!row)
            return demo_interrupted(demo) ? 0 : -1;
        json_object_set_new(row, "cache", json_string(kind->name));
        demo_table_row(demo, row);
    }
    fingerprint_add_sequence(&demo->run, bits[DYNAMIC]);
    return bits[DYNAMIC] == bits[STATIC]
               ? 0
               : demo_other_bits("dynamic", bits[DYNAMIC], "static", bits[STATIC], err);
}

static int tables(struct demo *demo, struct error *err) {
    static const int lengths[] = {32, 128, 512}, quick[] = {16, 32, 64};
    static const struct column columns[] = {{"cache", "cache", -1, 7},
                                            {"new", "new tokens", 0, 0},
                                            {"tok_s", "tok/s", 1, 6},
                                            {"ms_tok", "ms/tok", 2, 0},
                                            {"last_ms", "ms/tok at the end", 2, 0},
                                            {"ttft_ms", "TTFT ms", 1, 0},
                                            {"cache_mb", "cache MB", 1, 0},
                                            {"peak_mb", "peak MB", 1, 0},
                                            {"fingerprint", "fingerprint", -1, 16}};
    demo_table_begin(demo, "kv_cache",
                     "Phase 1: with a KV cache, a token costs the same early and late", columns,
                     sizeof columns / sizeof *columns);
    for (int i = 0; i < 3 && !demo_interrupted(demo); i++)
        if (measure_length(demo, (demo->options.quick ? quick : lengths)[i], err))
            return -1;
    return demo_table_end(demo, 0);
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 1,
        .title = "KV cache",
        .about = "Keys and values of what was read are kept; a new token costs one row of work.",
        .caches = contiguous_caches,
        .tables = tables,
        .fingerprint = 0x898374c5a73ed0a3,
    };
    return demo_main(argc, argv, &phase);
}
