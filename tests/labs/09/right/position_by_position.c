/* Lab 9, solved: every position of a tile is asked whether the row sees it. */
#include "ref/attention.h"

static bool is_seen(const struct varied_row *r, int position) {
    const struct attention_variant *v = r->variant;
    int distance = r->before + r->i - position; /* negative: in the query's future */
    if (position >= r->kv_len)
        return false;
    if (v->causal && v->mask_form == MASK_NONE && distance < 0)
        return false;
    return v->window_left < 0 || distance <= v->window_left;
}

struct tile_range ref_seen_in_tile(const struct varied_row *r, int tile) {
    struct tile_range range = {0, TILE};
    while (range.first < TILE && !is_seen(r, tile + range.first))
        range.first++;
    while (range.end > range.first && !is_seen(r, tile + range.end - 1))
        range.end--;
    return range;
}

bool ref_mask_shows(const struct varied_row *r, int j) {
    size_t element = (size_t)r->i * (size_t)r->kv_len + (size_t)j;
    if (r->variant->mask_form == MASK_BYTES)
        return r->mask[element] > 0;
    if (r->variant->mask_form == MASK_BITS)
        return r->mask[element / 8] & 1u << element % 8;
    return true;
}

bool ref_vary_scores(const struct varied_row *r, int tile, struct tile_range range, float *s,
                     double *v_units) {
    const struct attention_variant *v = r->variant;
    int n_visible = 0;
    for (int j = range.first; j < range.end; j++) {
        if (!ref_mask_shows(r, tile + j)) {
            s[j] = -INFINITY;
            v_units[j] = 1;
            continue;
        }
        n_visible++;
        if (v->soft_cap > 0 || v->alibi_slopes)
            s[j] = (float)(s[j] * r->natural);
        if (v->soft_cap > 0)
            s[j] = v->soft_cap * num_tanh(s[j] / v->soft_cap);
        if (v->alibi_slopes)
            s[j] += r->slope * (float)(tile + j - (r->before + r->i));
    }
    return n_visible > 0;
}
