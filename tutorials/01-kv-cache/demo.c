/*
 * Phase 1: the KV cache. Keys and values of the tokens read so far are kept, so a new token costs
 * one row of work. The table is phase 0's, for a cache that reserves everything and one that grows;
 * the fingerprints are phase 0's, too.
 */
#include "tutorials/common/demo.h"
#include "scheduler/kv_contiguous.h"

#include <inttypes.h>

static const char prompt[] = "Describe the history of the Roman Empire in significant detail.";

static const struct cache_kind caches[] = {{"dynamic", kv_dynamic_new, kv_cache_free},
                                           {"static", kv_static_new, kv_cache_free}};

/* The rows of one length, one per kind of cache. A difference between the kinds would be a bug
 * that must not hide in a table. */
static int measure_length(struct demo *demo, int n_new, json_t *rows, struct error *err) {
    uint64_t first = 0;
    for (int k = 0; k < 2; k++) {
        uint64_t fingerprint;
        json_t *row = demo_measure(demo, prompt, n_new, &caches[k], &fingerprint, err);
        if (!row)
            return demo_interrupted(demo) ? 0 : -1;
        json_object_set_new(row, "cache", json_string(caches[k].name));
        json_array_append_new(rows, row);
        if (k && fingerprint != first)
            return error_set(err,
                             "%d tokens: fingerprint %016" PRIx64 " with a %s cache, %016" PRIx64
                             " with a %s one. This is a bug",
                             n_new, fingerprint, caches[k].name, first, caches[0].name);
        first = fingerprint;
    }
    fingerprint_add_sequence(&demo->run, first);
    return 0;
}

static int tables(struct demo *demo, struct error *err) {
    static const int lengths[] = {32, 128, 512};
    static const struct column columns[] = {{"cache", "cache", -1},
                                            {"new", "new tokens", 0},
                                            {"tok_s", "tok/s", 1},
                                            {"ms_tok", "ms/tok", 2},
                                            {"last_ms", "ms/tok at the end", 2},
                                            {"ttft_ms", "TTFT ms", 1},
                                            {"cache_mb", "cache MB", 1},
                                            {"peak_mb", "peak MB", 1},
                                            {"fingerprint", "fingerprint", -1}};
    json_t *rows = json_array();
    for (int i = 0; i < 3 && !demo_interrupted(demo); i++)
        if (measure_length(demo, lengths[i], rows, err)) {
            json_decref(rows);
            return -1;
        }
    demo_table(demo, "kv_cache", "Phase 1: with a KV cache, a token costs the same early and late",
               columns, sizeof columns / sizeof *columns, rows);
    return 0;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 1,
        .title = "KV cache",
        .about = "Keys and values of what was read are kept; a new token costs one row of work.",
        .caches = caches,
        .n_caches = 2,
        .tables = tables,
    };
    return demo_main(argc, argv, &phase);
}
