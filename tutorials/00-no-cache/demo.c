/*
 * Phase 0: no cache. Every token is paid for by reading the whole text again, so the cost of a
 * token grows with the text before it. The table shows how fast that hurts.
 */
#include "tutorials/common/demo.h"

static const char prompt[] = "Describe the history of the Roman Empire in significant detail.";

static int tables(struct demo *demo, struct error *err) {
    static const int lengths[] = {32, 128, 512};
    static const struct column columns[] = {
        {"new", "new tokens", 0},          {"tok_s", "tok/s", 1},
        {"ms_tok", "ms/tok", 2},           {"last_ms", "ms/tok at the end", 2},
        {"ttft_ms", "TTFT ms", 1},         {"peak_mb", "peak MB", 1},
        {"fingerprint", "fingerprint", -1}};
    json_t *rows = json_array();
    for (int i = 0; i < 3; i++) {
        uint64_t fingerprint;
        json_t *row = demo_measure(demo, prompt, lengths[i], NULL, &fingerprint, err);
        if (!row && demo_interrupted(demo))
            break;
        if (!row) {
            json_decref(rows);
            return -1;
        }
        json_array_append_new(rows, row);
        fingerprint_add_sequence(&demo->run, fingerprint);
    }
    demo_table(demo, "no_cache", "Phase 0: without a cache, every token reads the text again",
               columns, sizeof columns / sizeof *columns, rows);
    return 0;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 0,
        .title = "no cache",
        .about = "Every new token reads the whole text again.",
        .tables = tables,
    };
    return demo_main(argc, argv, &phase);
}
