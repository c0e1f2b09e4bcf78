/* What a variant of attention (model/attention/variant.h) makes of one row and tile. */
#include "ref/attention.h"

struct tile_range ref_seen_in_tile(const struct varied_row *r, int tile) {
    int first = attention_first(r->variant, r->before, r->i) - tile;
    int end = attention_end(r->variant, r->before, r->i, r->kv_len) - tile;
    return (struct tile_range){first > 0 ? first : 0, end < TILE ? end : TILE};
}

bool ref_mask_shows(const struct varied_row *r, int j) {
    return attention_shows(r->variant, r->mask, r->i, j, r->kv_len);
}

bool ref_vary_scores(const struct varied_row *r, int tile, struct tile_range range, float *s,
                     double *v_units) {
    double natural = attention_changes_scores(r->variant) ? r->natural : 1;
    bool visible = false;
    for (int j = range.first; j < range.end; j++) {
        bool sees = ref_mask_shows(r, tile + j);
        s[j] = sees ? attention_score(r->variant, (float)(s[j] * natural), r->before + r->i,
                                      tile + j, r->slope)
                    : -INFINITY;
        v_units[j] = sees ? v_units[j] : 1;
        visible |= sees;
    }
    return visible;
}
