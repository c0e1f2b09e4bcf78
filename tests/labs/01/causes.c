/* The typical mistakes of lab 1: what each looks like from outside, and three hints. */
#include "tests/labs/01/causes.h"

#include <string.h>

static bool is_wrong(const struct lab_finding *f, const char *check, const char *label) {
    return f->how == LAB_WRONG && lab_is(f, check, label);
}

static bool half_a_cache(const struct lab_finding *f) {
    return !strcmp(f->check->name, "no memory");
}

static bool leaks(const struct lab_finding *f) {
    return (f->how == LAB_LEAKED && !half_a_cache(f)) ||
           (f->how == LAB_WRONG && strstr(f->label, "kv_cache_free") && !half_a_cache(f));
}

static bool free_of_nothing(const struct lab_finding *f) {
    return f->how == LAB_UNDEFINED && strstr(f->report, "kv_cache_free") &&
           strstr(f->report, "null pointer");
}

static bool padding_is_stored(const struct lab_finding *f) {
    return !strcmp(f->check->name, "padding") && !lab_failed(f, "append");
}

static bool exponent_of_another_row(const struct lab_finding *f) {
    return is_wrong(f, "append", "exponent of ");
}

static bool page_size_ignored(const struct lab_finding *f) {
    return !strcmp(f->check->name, "pages") && !lab_failed(f, "append");
}

static bool bad_row(const struct lab_finding *f) {
    return !strcmp(f->check->name, "fault");
}

static bool limit_off_by_one(const struct lab_finding *f) {
    return is_wrong(f, "static", "reserve of ") || is_wrong(f, "limit", "reserve of ");
}

static bool beyond_the_limit(const struct lab_finding *f) {
    return is_wrong(f, "grow", "capacity after") && lab_expected(f) == 300;
}

static bool limit_not_a_cap(const struct lab_finding *f) {
    return beyond_the_limit(f) || is_wrong(f, "limit", "capacity after");
}

static bool exact_multiple(const struct lab_finding *f) {
    return is_wrong(f, "grow", "capacity after") && f->size % 64 == 0;
}

static bool old_piece_stays(const struct lab_finding *f) {
    return f->check->step == 3 && f->how == LAB_WRONG &&
           !strncmp(f->label, "device memory in use after reserve", 34);
}

static bool not_all_copied(const struct lab_finding *f) {
    return !strcmp(f->check->name, "keep");
}

const struct lab_cause lab_1_causes[N_LAB_1_CAUSES] = {
    {"nothing to free",
     free_of_nothing,
     {"What does kv_cache_free do with a cache that could not be made?",
      "NULL is fine: as with free, nothing happens.",
      "Look at the first line of {kv_cache_free}."}},
    {"padding is stored",
     padding_is_stored,
     {"Where does a row go that belongs to no sequence?",
      "A token whose slot is negative is skipped; -1 is no place in the array.",
      "Look at the loop over tokens in {ref_kv_append}: the test of slots[i] comes before the slot "
      "is divided into page and position."}},
    {"the exponent of another row",
     exponent_of_another_row,
     {"How many exponents does a token have in a layer?",
      "Each row of head_dim elements, of k and of v, has an exponent of its own: of the largest "
      "magnitude in this row alone.",
      "Look at {ref_kv_append}: the largest magnitude begins with 0 for every row, and the "
      "exponent "
      "goes to kv_view_exponent of the row's own view and head."}},
    {"slot and page mixed up",
     page_size_ignored,
     {"Slot 5, with 4 positions per page: which page, which position?",
      "page = slot / page_size and position = slot % page_size. With pages of 1 a mistake in them "
      "may not show.",
      "Look at the arguments of kv_view_row and kv_view_exponent in {ref_kv_append}: page first."}},
    {"a row that is not finite",
     bad_row,
     {"What should a cache hold of a row with a NaN?",
      "Zeros with the exponent BFP_MIN_EXPONENT; and the device is told: site_k or site_v, and the "
      "token (not the row).",
      "Look at {ref_kv_append} behind kv_stored_exponent: e > BFP_MAX_EXPONENT."}},
    {"memory is not given back",
     leaks,
     {"What did the cache allocate, and who frees it?",
      "kv_cache_free frees keys, values and exponents of every layer, the array of layers and the "
      "cache.",
      "Look at {kv_cache_free}: kv_layer_free needs the capacity with which the layer was "
      "allocated."}},
    {"half a cache stays",
     half_a_cache,
     {"There is memory for one layer, but not for the second. Who frees the first?",
      "The answer is NULL with err set, and what was allocated before is given back. "
      "kv_layer_alloc has given back its own.",
      "Look at what {kv_static_new} does when kv_layer_alloc fails: kv_layer_free of the layers "
      "before, the array, the cache."}},
    {"off by one at the limit",
     limit_off_by_one,
     {"A cache with room for 64: do 64 positions fit? Do 65?",
      "As many positions as the capacity, or the limit, are fine; one more is -1 with err set.",
      "Look at the comparisons in the reserve that {kv_static_new} and {kv_dynamic_new} set: <= "
      "or <?"}},
    {"the limit does not cap the capacity",
     limit_not_a_cap,
     {"The limit is 300. What comes after 256?",
      "The doubled capacity is cut to the limit, which need not be a power of two times 64, and "
      "may "
      "be below 64.",
      "Look at the reserve that {kv_dynamic_new} sets, behind the loop that doubles."}},
    {"an exact multiple",
     exact_multiple,
     {"How much room do exactly 64 positions need?",
      "The capacity doubles while it is smaller than n_positions; 64 fit in 64.",
      "Look at the condition of the loop in the reserve that {kv_dynamic_new} sets: < or <=?"}},
    {"the old piece stays",
     old_piece_stays,
     {"How many pieces does a layer have after it has grown?",
      "What is in use on the device has to be the cache's bytes, no more.",
      "Look at the reserve that {kv_dynamic_new} sets, behind the copies: kv_layer_free of the old "
      "layer, with the old capacity."}},
    {"not everything is copied",
     not_all_copied,
     {"What is a stored row made of?",
      "Keys, values and the exponents of both move, for all positions, heads and layers: "
      "mantissas take two bytes each, exponents one a row.",
      "Look at the four copies in the reserve that {kv_dynamic_new} sets, and at the bytes of "
      "each."}},
};
