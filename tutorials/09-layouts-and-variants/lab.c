/*
 * Lab 9: what a query sees, and what happens to its scores. Your file takes the place of
 * ref/variant.c; the task is in the section "Lab" of this chapter. `make lab9` builds and grades
 * it.
 *
 * struct varied_row (ref/attention.h) is one query row: its variant (model/attention/variant.h),
 * the mask of its sequence, its number i, `before`, kv_len, the slope of its head. The query's
 * position is before + i. TILE is 256. attention_first, attention_end, attention_shows and
 * attention_score of variant.h are what you write: read them when yours passes. A file that calls
 * them is refused.
 */
#include "ref/attention.h"
#include "tests/labs/not_written.h"

/* ---- step 1: causal and window --------------------------------------------------------------- */

/* The positions that the row may see of the TILE positions from `tile` on, counted in the tile:
 * first ... end - 1. They are in the sequence (0 ... kv_len - 1), and
 *     causal    not behind the query's own position. A mask (variant->mask_form is not MASK_NONE)
 *               takes the place of causal, whatever variant->causal says
 *     window    where variant->window_left >= 0 (INT_MAX is a window, too): not more than so many
 *               positions before the query's
 * first is at least 0 and end at most TILE. Where the row sees nothing, any two with first >= end
 * will do. before can be negative, and so can the query's position. */
struct tile_range ref_seen_in_tile(const struct varied_row *r, int tile) {
    (void)r, (void)tile;
    not_written("the first position and the end that causal, window and kv_len leave, less `tile`, "
                "within 0 and TILE");
}

/* ---- step 2: a mask -------------------------------------------------------------------------- */

/* Whether the mask shows position j of the sequence to the row. The mask is a matrix [queries,
 * kv_len] at r->mask, row after row without gaps: MASK_BYTES has a byte for each element, 0 is
 * hidden; MASK_BITS a bit, the lowest of a byte first; MASK_NONE shows everything. */
bool ref_mask_shows(const struct varied_row *r, int j) {
    (void)r, (void)j;
    not_written("find element (i, j) of the matrix: a byte, or a bit of a byte");
}

/* ---- step 3: scores -------------------------------------------------------------------------- */

/* For the positions `tile` + j of the sequence, range.first <= j < range.end:
 *   - hidden by the mask: s[j] becomes -INFINITY and v_units[j] 1;
 *   - else s[j] becomes the score that the variant makes of it, in float, one operation after the
 *     other. It is first (float)(s[j] * r->natural), natural being a double;
 *     soft cap, where variant->soft_cap is above 0: s = soft_cap * num_tanh(s / soft_cap);
 *     then ALiBi, where variant->alibi_slopes is not NULL: s = s + r->slope * (float)(position -
 *     the query's position).
 *     Without soft cap and ALiBi it stays what it was, and is not multiplied by natural.
 * Nothing outside the range changes. Returns whether one position is visible. */
bool ref_vary_scores(const struct varied_row *r, int tile, struct tile_range range, float *s,
                     double *v_units) {
    (void)r, (void)tile, (void)range, (void)s, (void)v_units;
    not_written("for each position of the range: hidden, or its score with soft cap and ALiBi");
}
