/*
 * Phase 14: one model on several ranks. The tables answer many requests, show what each rank has of
 * the model and what they say to each other; --plan computes what more ranks would take.
 */
#include "tutorials/14-tensor-parallel/ranks.h"
#include "tutorials/common/paged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what each rank has ---------------------------------------------------------------------- */

/* Of one rank; numbers of 32 bits, as ranks gather them. */
struct rank_row {
    uint32_t heads, kv_heads, ffn, words;
    uint32_t weights_kb, resident_kb; /* of device memory, and of the process at its largest */
    uint32_t calls, kb, ms;           /* said so far */
};

enum { N_FIELDS = sizeof(struct rank_row) / sizeof(uint32_t) };

/* VmHWM of /proc/self/status: the most that was resident. */
static uint32_t resident_kb(void) {
    char line[256];
    unsigned kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f) && !sscanf(line, "VmHWM: %u", &kb))
        continue;
    if (f)
        fclose(f);
    return kb;
}

__attribute__((unused)) static struct rank_row measure_rank(const struct demo *demo, size_t weights, double calls) {
    const struct model_part *part = &demo->model.part;
    const struct parallel *p = demo->parallel;
    struct rank_row row = {.heads = (uint32_t)part->heads.n,
                           .kv_heads = (uint32_t)part->kv_heads.n,
                           .ffn = (uint32_t)part->ffn.n,
                           .words = (uint32_t)part->vocab.n,
                           .weights_kb = (uint32_t)(weights >> 10),
                           .resident_kb = resident_kb()};
    (void)calls;
    if (p) {
        row.calls = (uint32_t)p->counts.calls;
        row.kb = (uint32_t)(p->counts.bytes >> 10);
        row.ms = (uint32_t)(p->counts.seconds * 1e3);
    }
    return row;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 14,
        .title = "tensor parallelism",
        .about = "One model on several processes, with the bits of one.",
        .caches = paged_caches,
        .fused = true,
        .tables = NULL,
        .prompts = paged_prompts,
        .begin = paged_begin,
        .join = ranks_join,
        .agree = ranks_agree,
    };
    (void)measure_rank;
    return demo_main(argc, argv, &phase);
}
