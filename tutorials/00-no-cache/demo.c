/*
 * Phase 0: no cache. Every token is paid for by reading the whole text again, so the cost of a
 * token grows with the text before it. The table shows how fast that hurts.
 */
#include "tutorials/common/demo.h"

static int tables(struct demo *demo, struct error *err) {
    static const int lengths[] = {32, 128, 512}, quick[] = {8, 16, 32};
    static const struct column columns[] = {{"new", "new tokens", 0, 0},
                                            {"tok_s", "tok/s", 1, 6},
                                            {"ms_tok", "ms/tok", 2, 7},
                                            {"last_ms", "ms/tok at the end", 2, 0},
                                            {"ttft_ms", "TTFT ms", 1, 0},
                                            {"peak_mb", "peak MB", 1, 0},
                                            {"fingerprint", "fingerprint", -1, 16}};
    demo_table_begin(demo, "no_cache", "Phase 0: without a cache, every token reads the text again",
                     columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < 3; i++) {
        uint64_t fingerprint;
        json_t *row = demo_measure(demo, demo_prompt, (demo->options.quick ? quick : lengths)[i],
                                   NULL, &fingerprint, err);
        if (!row && demo_interrupted(demo))
            break;
        if (!row)
            return -1;
        demo_table_row(demo, row);
        fingerprint_add_sequence(&demo->run, fingerprint);
    }
    return demo_table_end(demo, 0);
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 0,
        .title = "no cache",
        .about = "Every new token reads the whole text again.",
        .tables = tables,
        .fingerprint = 0x898374c5a73ed0a3,
    };
    return demo_main(argc, argv, &phase);
}
