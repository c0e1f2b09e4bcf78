/*
 * fuzz_config.c - any bytes as config.json: refused with a message, or every promise of config.h
 * holds for what was read. What follows a NUL byte is read as generation_config.json.
 */
#include "model/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool holds) {
    if (!holds)
        abort();
}

static bool within(int value, int max) {
    return value >= 1 && value <= max;
}

static void check(const struct model_config *c) {
    must(within(c->n_layers, MAX_LAYERS) && within(c->hidden, MAX_HIDDEN));
    must(within(c->n_heads, MAX_HEADS) && within(c->n_kv_heads, c->n_heads));
    must(c->n_heads % c->n_kv_heads == 0);
    must(within(c->head_dim, MAX_HEAD_DIM) && c->head_dim % 2 == 0);
    must(within(c->ffn, MAX_FFN) && within(c->vocab_size, MAX_VOCAB));
    must(within(c->max_positions, MAX_POSITIONS));
    must(isnormal((float)c->rms_eps) && c->rms_eps > 0);
    must(isfinite(c->rope.theta) && c->rope.theta >= 1);
    must(isfinite(c->rope.factor) && c->rope.factor >= 1);
    must(within(c->rope.original_max_positions, MAX_POSITIONS));
    if (c->rope.scaling == ROPE_LLAMA3)
        must(c->rope.low_freq_factor > 0 && c->rope.low_freq_factor < c->rope.high_freq_factor &&
             isfinite(c->rope.high_freq_factor));
    must(c->n_stop_ids >= 0 && c->n_stop_ids <= MAX_STOP_IDS);
    for (int i = 0; i < c->n_stop_ids; i++)
        must(c->stop_ids[i] >= 0 && c->stop_ids[i] < c->vocab_size);
    must(within((int)c->arch + 1, ARCH_QWEN3 + 1));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct model_config c;
    struct error err = {""};
    const char *text = (const char *)data;
    const char *nul = n ? memchr(text, 0, n) : NULL;
    size_t first = nul ? (size_t)(nul - text) : n;
    if (model_config_parse(&c, text, first, "fuzz", &err)) {
        must(err.text[0] != 0);
        return 0;
    }
    check(&c);
    if (nul && !model_config_parse_generation(&c, nul + 1, n - first - 1, "fuzz", &err))
        check(&c);
    return 0;
}
