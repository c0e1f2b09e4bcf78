#include "tests/check_cases.h"

#include "model/rope_table.h"
#include "tests/check_arrays.h"
#include "tests/device.h"
#include "tests/random_inputs.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Kernels break where a row or the rows end in the middle of a vector (4), a warp (32), a block (64
 * to 1024), and where they change to another kernel. */
static const int rows_and_cols[][CHECK_SIZES] = {
    {1, 1},    {2, 1},    {33, 1},   {5, 2},    {5, 3},    {5, 4},     {5, 5},    {5, 31},
    {5, 32},   {5, 33},   {5, 63},   {5, 64},   {5, 65},   {5, 97},    {5, 127},  {5, 128},
    {5, 129},  {5, 255},  {5, 256},  {5, 257},  {5, 509},  {5, 511},   {5, 512},  {5, 513},
    {5, 516},  {5, 1021}, {5, 1023}, {5, 1024}, {5, 1025}, {5, 1028},  {5, 2049}, {5, 4096},
    {5, 4099}, {5, 4100}, {5, 8192}, {5, 8196}, {1, 67},   {2, 67},    {3, 64},   {4, 67},
    {31, 67},  {32, 64},  {33, 67},  {127, 67}, {128, 64}, {129, 67},  {255, 67}, {256, 64},
    {257, 67}, {513, 67}, {1, 1024}, {2, 1024}, {31, 516}, {33, 1028}, {65, 516}, {1031, 33},
};

static const int counts[][CHECK_SIZES] = {
    {1},    {2},    {3},    {4},    {5},    {31},   {32},   {33},    {63},   {64},
    {65},   {97},   {127},  {128},  {129},  {255},  {256},  {257},   {509},  {511},
    {512},  {513},  {1021}, {1023}, {1024}, {1025}, {1028}, {2047},  {2048}, {2049},
    {4093}, {4096}, {4097}, {4099}, {8191}, {8192}, {8193}, {20011}, {65537}};

static const int linear_shapes[][CHECK_SIZES] = {
    {1, 1, 1},     {1, 1, 2},      {1, 2, 31},     {2, 3, 32},    {2, 3, 33},   {2, 5, 63},
    {2, 5, 64},    {2, 5, 65},     {2, 5, 97},     {2, 5, 127},   {2, 5, 128},  {2, 5, 129},
    {2, 5, 255},   {2, 5, 256},    {2, 5, 257},    {2, 5, 513},   {2, 5, 1023}, {2, 5, 1024},
    {2, 5, 1025},  {3, 5, 4096},   {3, 5, 4099},   {1, 31, 67},   {1, 32, 64},  {1, 33, 67},
    {1, 127, 64},  {1, 128, 64},   {1, 129, 67},   {1, 255, 67},  {1, 256, 64}, {1, 257, 67},
    {1, 1031, 65}, {1, 4099, 128}, {4, 31, 128},   {7, 65, 67},   {8, 33, 96},  {9, 33, 97},
    {15, 67, 65},  {16, 64, 128},  {16, 127, 520}, {17, 67, 130}, {31, 33, 67}, {32, 64, 64},
    {33, 65, 67},  {63, 17, 64},   {64, 64, 64},   {65, 33, 67},  {127, 9, 67}, {128, 16, 64},
    {129, 9, 67},  {255, 5, 33},   {256, 8, 64},   {257, 13, 65}, {1031, 3, 31}};

static const int rope_shapes[][CHECK_SIZES] = {
    {1, 1, 2},   {2, 1, 2},    {5, 1, 4},    {5, 3, 6},    {5, 2, 16},   {5, 1, 30},
    {5, 1, 32},  {5, 1, 34},   {5, 2, 64},   {5, 7, 64},   {5, 3, 80},   {5, 3, 100},
    {5, 2, 126}, {5, 1, 128},  {5, 8, 128},  {5, 40, 128}, {5, 2, 256},  {5, 3, 258},
    {31, 2, 64}, {32, 2, 64},  {33, 3, 66},  {127, 2, 32}, {128, 1, 64}, {129, 3, 8},
    {255, 1, 6}, {256, 2, 64}, {257, 3, 34}, {1031, 1, 10}};

static const int kv_append_shapes[][CHECK_SIZES] = {
    {1, 1, 1},   {1, 1, 2},    {2, 1, 2},    {5, 1, 31},   {5, 3, 32},   {5, 2, 33},   {5, 2, 64},
    {5, 8, 64},  {5, 3, 80},   {5, 2, 97},   {5, 2, 127},  {5, 2, 128},  {5, 8, 128},  {5, 2, 129},
    {5, 1, 255}, {5, 3, 256},  {5, 2, 257},  {5, 1, 1025}, {31, 2, 64},  {32, 2, 64},  {33, 3, 67},
    {64, 1, 32}, {127, 1, 80}, {128, 2, 32}, {129, 3, 33}, {257, 1, 64}, {1031, 1, 16}};

/* tokens, kv length, heads, kv heads, head dim: about the tile of 256 positions */
static const int attention_shapes[][CHECK_SIZES] = {
    {3, 1, 2, 1, 32},    {20, 17, 4, 2, 16},  {1, 1, 1, 1, 2},     {1, 2, 1, 1, 32},
    {1, 31, 2, 1, 32},   {1, 32, 2, 2, 64},   {1, 33, 4, 2, 80},   {1, 63, 8, 2, 128},
    {1, 255, 4, 1, 64},  {1, 256, 4, 4, 32},  {1, 257, 6, 3, 64},  {1, 511, 2, 1, 128},
    {1, 512, 2, 2, 64},  {1, 513, 7, 1, 32},  {1, 769, 2, 1, 64},  {1, 1025, 4, 1, 32},
    {1, 1031, 1, 1, 97}, {2, 2, 2, 1, 32},    {3, 3, 1, 1, 128},   {15, 15, 2, 1, 64},
    {16, 16, 4, 2, 32},  {17, 17, 4, 2, 80},  {2, 257, 2, 2, 64},  {5, 256, 4, 2, 32},
    {16, 300, 2, 1, 16}, {33, 33, 4, 2, 64},  {64, 64, 2, 1, 128}, {65, 65, 8, 2, 32},
    {97, 97, 1, 1, 64},  {257, 257, 1, 1, 4}, {31, 513, 1, 1, 16}, {3, 1025, 2, 1, 32}};

/* sequences, positions of each, heads, kv heads, head dim: about pages of 16 and the tile */
static const int paged_shapes[][CHECK_SIZES] = {
    {1, 1, 1, 1, 2},     {1, 2, 2, 1, 32},    {2, 15, 2, 2, 16},  {3, 16, 4, 2, 64},
    {3, 17, 4, 2, 80},   {2, 31, 8, 2, 128},  {2, 33, 7, 1, 96},  {1, 63, 2, 1, 7},
    {1, 65, 9, 1, 32},   {2, 255, 4, 1, 64},  {2, 256, 4, 4, 32}, {3, 257, 6, 3, 64},
    {1, 511, 2, 1, 128}, {1, 512, 2, 2, 192}, {1, 513, 7, 1, 32}, {1, 769, 2, 1, 256},
    {2, 1025, 4, 1, 32}, {1, 1031, 1, 1, 97}, {17, 40, 2, 1, 32}, {33, 20, 4, 2, 16}};

static const int sample_shapes[][CHECK_SIZES] = {
    {1, 1},   {2, 1},   {5, 2},   {5, 3},    {6, 31},   {6, 32},   {6, 33},   {3, 97},
    {3, 127}, {3, 128}, {3, 129}, {3, 255},  {3, 256},  {3, 257},  {3, 509},  {3, 511},
    {3, 512}, {3, 513}, {3, 767}, {3, 1023}, {3, 1024}, {3, 1025}, {2, 4099}, {1, 97},
    {2, 97},  {31, 33}, {32, 32}, {33, 33},  {129, 5},  {257, 2}};

/* ---- the ops, in the order of gpu/gpu.h ------------------------------------------------------ */

static void make_embed(struct check_call *call, struct random *r, const int *size) {
    add_output(call, "y", size[0], size[1]);
    add_ids(call, r, "token_ids", size[0], size[0] + 2);
    add_weights(call, r, size[0] + 2, size[1]);
}

static void run_embed(const struct ops *ops, struct device *dev, const int *size, void *const *at) {
    ops->embed(dev, at[0], at[1], at[2], size[0]);
}

static void make_take_rows(struct check_call *call, struct random *r, const int *size) {
    add_output(call, "y", size[0], size[1]);
    add_rows(call, CHECK_INPUT, r, "x", size[0] + 2, size[1]);
    add_ids(call, r, "rows", size[0], size[0] + 2);
}

static void run_take_rows(const struct ops *ops, struct device *dev, const int *size,
                          void *const *at) {
    ops->take_rows(dev, at[0], at[1], at[2], size[0], size[1]);
}

static void make_snap_rows(struct check_call *call, struct random *r, const int *size) {
    add_array(call, CHECK_OUTPUT, "mantissas", ELEMENT_INT16, sizeof(int16_t), size[0], size[1]);
    add_array(call, CHECK_OUTPUT, "exponents", ELEMENT_INT8, 1, size[0], 1);
    add_rows(call, CHECK_INPUT, r, "x", size[0], size[1]);
}

static void run_snap_rows(const struct ops *ops, struct device *dev, const int *size,
                          void *const *at) {
    ops->snap_rows(dev, (struct bfp_rows){at[0], at[1]}, at[2], size[0], size[1], CHECK_SITE);
}

static void make_linear(struct check_call *call, struct random *r, const int *size) {
    static const char *names[2] = {"x", "x's exponents"};
    add_output(call, "y", size[0], size[1]);
    add_snapped(call, names, size[0], size[2], snapped_rows(r, size[0], size[2], N_DISTRIBUTIONS));
    add_weights(call, r, size[1], size[2]);
}

static void run_linear(const struct ops *ops, struct device *dev, const int *size,
                       void *const *at) {
    ops->linear(dev, at[0], (struct bfp_rows){at[1], at[2]}, at[3], size[0]);
}

/* The numbers of outputs of the parts. */
static void part_sizes(int n[MOST_LINEAR_PARTS], const int *size) {
    n[0] = size[1];
    n[1] = size[1] / 4 + 1;
    n[2] = size[1] / 2 + 2;
}

static void make_linear_parts(struct check_call *call, struct random *r, const int *size) {
    static const char *names[2] = {"x", "x's exponents"};
    int n[MOST_LINEAR_PARTS];
    part_sizes(n, size);
    for (int i = 0; i < MOST_LINEAR_PARTS; i++)
        add_output(call, "y", size[0], n[i]);
    add_snapped(call, names, size[0], size[2], snapped_rows(r, size[0], size[2], N_DISTRIBUTIONS));
    for (int i = 0; i < MOST_LINEAR_PARTS; i++)
        add_weights(call, r, n[i], size[2]);
}

static void run_linear_parts(const struct ops *ops, struct device *dev, const int *size,
                             void *const *at) {
    const struct linear_part parts[MOST_LINEAR_PARTS] = {
        {at[0], at[5]}, {at[1], at[6]}, {at[2], at[7]}};
    ops->linear_parts(dev, parts, MOST_LINEAR_PARTS, (struct bfp_rows){at[3], at[4]}, size[0]);
}

static void make_add_bias(struct check_call *call, struct random *r, const int *size) {
    add_rows(call, CHECK_INOUT, r, "y", size[0], size[1]);
    add_mixed(call, r, "bias", size[1]);
}

static void run_add_bias(const struct ops *ops, struct device *dev, const int *size,
                         void *const *at) {
    ops->add_bias(dev, at[0], at[1], size[0], size[1]);
}

static void make_rmsnorm(struct check_call *call, struct random *r, const int *size) {
    add_output(call, "y", size[0], size[1]);
    add_rows(call, CHECK_INPUT, r, "x", size[0], size[1]);
    add_filled(call, "gain", sizeof(float), 1, size[1], random_rows(r, 1, size[1], NORMAL));
}

static void run_rmsnorm(const struct ops *ops, struct device *dev, const int *size,
                        void *const *at) {
    static const double epsilons[] = {1e-5, 1e-6, 1e-12, 1};
    int rows_per_token = size[0] % 3 ? 1 : 3;
    ops->rmsnorm(dev, at[0], at[1], at[2], size[0], size[1], rows_per_token, epsilons[size[1] % 4],
                 CHECK_SITE);
}

static void make_add_rmsnorm(struct check_call *call, struct random *r, const int *size) {
    add_output(call, "y", size[0], size[1]);
    add_rows(call, CHECK_INOUT, r, "x", size[0], size[1]);
    add_rows(call, CHECK_INPUT, r, "branch", size[0], size[1]);
    add_filled(call, "gain", sizeof(float), 1, size[1], random_rows(r, 1, size[1], NORMAL));
    add_array(call, CHECK_OUTPUT, "mantissas", ELEMENT_INT16, sizeof(int16_t), size[0], size[1]);
    add_array(call, CHECK_OUTPUT, "exponents", ELEMENT_INT8, 1, size[0], 1);
}

static void run_add_rmsnorm(const struct ops *ops, struct device *dev, const int *size,
                            void *const *at) {
    ops->add_rmsnorm(dev, at[0], (struct bfp_rows){at[4], at[5]}, at[1], at[2], at[3], size[0],
                     size[1], 1e-6, CHECK_SITE, CHECK_SITE + 1);
}

/* positions, cos_table and sin_table of n tokens. */
static void add_rotations(struct check_call *call, struct random *r, int n, int head_dim) {
    enum { POSITIONS = 300 };
    int half = head_dim / 2;
    struct rope_config rope = {.theta = 10000, .scaling = ROPE_PLAIN, .factor = 1};
    float *inverse = host_array((size_t)half, sizeof *inverse);
    float *c = host_array((size_t)(POSITIONS * half), sizeof *c);
    float *s = host_array((size_t)(POSITIONS * half), sizeof *s);
    rope_inverse_frequencies(inverse, &rope, head_dim);
    rope_fill(c, s, inverse, half, POSITIONS);
    free(inverse);
    add_ids(call, r, "positions", n, POSITIONS);
    add_filled(call, "cos_table", sizeof *c, POSITIONS, half, c);
    add_filled(call, "sin_table", sizeof *s, POSITIONS, half, s);
}

static void make_rope(struct check_call *call, struct random *r, const int *size) {
    add_rows(call, CHECK_INOUT, r, "x", size[0], size[1] * size[2]);
    add_rotations(call, r, size[0], size[2]);
}

static void run_rope(const struct ops *ops, struct device *dev, const int *size, void *const *at) {
    ops->rope(dev, at[0], at[1], at[2], at[3], size[0], size[1], size[2]);
}

static void make_norm_rope(struct check_call *call, struct random *r, const int *size) {
    add_rows(call, CHECK_INOUT, r, "q", size[0] * size[1], size[2]);
    add_rows(call, CHECK_INOUT, r, "k", size[0] * ((size[1] + 1) / 2), size[2]);
    add_filled(call, "q's gain", sizeof(float), 1, size[2], random_rows(r, 1, size[2], NORMAL));
    add_filled(call, "k's gain", sizeof(float), 1, size[2], random_rows(r, 1, size[2], NORMAL));
    add_rotations(call, r, size[0], size[2]);
}

/* Every third shape without norms, as in models that have none. */
static void run_norm_rope(const struct ops *ops, struct device *dev, const int *size,
                          void *const *at) {
    bool has_norms = size[0] * size[1] % 3;
    struct head_rows q = {at[0], has_norms ? at[2] : NULL, size[1], CHECK_SITE};
    struct head_rows k = {at[1], has_norms ? at[3] : NULL, (size[1] + 1) / 2, CHECK_SITE + 1};
    ops->norm_rope(dev, &q, &k, NULL, NULL, at[4], at[5], at[6], size[0], size[2], 1e-6);
}

/* Every token its own slot, in random order, some skipped; three slots stay free. */
static void add_slots(struct check_call *call, struct random *r, int n_tokens, int n_slots) {
    int64_t *slots = host_array((size_t)n_slots, sizeof *slots);
    for (int i = 0; i < n_slots; i++)
        slots[i] = i;
    for (int i = 0; i < n_tokens; i++) {
        int j = random_int(r, i, n_slots - 1);
        int64_t slot = slots[j];
        slots[j] = slots[i];
        slots[i] = i % 5 == 3 ? (i % 2 ? -1 : INT64_MIN) : slot;
    }
    add_filled(call, "slots", sizeof *slots, n_tokens, 1, slots);
}

static void make_kv_append(struct check_call *call, struct random *r, const int *size) {
    int n_slots = size[0] + 3, n_rows = n_slots * size[1];
    add_array(call, CHECK_OUTPUT, "keys", ELEMENT_INT16, sizeof(int16_t), n_rows, size[2]);
    add_array(call, CHECK_OUTPUT, "values", ELEMENT_INT16, sizeof(int16_t), n_rows, size[2]);
    add_array(call, CHECK_OUTPUT, "keys' exponents", ELEMENT_INT8, 1, n_rows, 1);
    add_array(call, CHECK_OUTPUT, "values' exponents", ELEMENT_INT8, 1, n_rows, 1);
    add_rows(call, CHECK_INPUT, r, "k", size[0] * size[1], size[2]);
    add_rows(call, CHECK_INPUT, r, "v", size[0] * size[1], size[2]);
    add_slots(call, r, size[0], n_slots);
}

/* Views of a cache of one page: HND, or vLLM's layout where it exists. */
static struct kv_views one_page(int positions, int n_heads, int dim, int16_t *k, int16_t *v,
                                int8_t *k_exponents, int8_t *v_exponents, bool vllm) {
    struct kv_layout layout =
        kv_layout_of(vllm && dim % 8 == 0 ? KV_VLLM : KV_HND, false, 1, positions, n_heads, dim);
    struct kv_views views;
    struct error err;
    kv_views_of(&views, &layout, k, v, k_exponents, v_exponents, &err);
    return views;
}

/* The engine's own layout for odd numbers of tokens, and for many. */
static void run_kv_append(const struct ops *ops, struct device *dev, const int *size,
                          void *const *at) {
    int n_slots = size[0] + 3;
    struct kv_layer layer = {at[0], at[1], at[2], at[3]};
    struct kv_views views = one_page(n_slots, size[1], size[2], at[0], at[1], at[2], at[3], true);
    if (size[0] % 2 || size[0] > 1000)
        views = kv_layer_views(&layer, KV_BFP16, n_slots, size[1], size[2]);
    ops->kv_append(dev, &views, at[4], at[5], at[6], size[0], n_slots, size[1], size[2], CHECK_SITE,
                   CHECK_SITE + 1);
}

static void make_kv_gather(struct check_call *call, struct random *r, const int *size) {
    static const char *keys[2] = {"keys", "keys' exponents"};
    static const char *values[2] = {"values", "values' exponents"};
    int n_slots = size[0] + 3, n_rows = n_slots * size[1], out = size[0] * size[1], dim = size[2];
    int64_t *slots = host_array((size_t)size[0], sizeof *slots);
    for (int i = 0; i < size[0]; i++) /* some twice */
        slots[i] = random_int(r, 0, n_slots - 1);
    add_array(call, CHECK_OUTPUT, "gathered keys", ELEMENT_INT16, sizeof(int16_t), out, dim);
    add_array(call, CHECK_OUTPUT, "gathered values", ELEMENT_INT16, sizeof(int16_t), out, dim);
    add_array(call, CHECK_OUTPUT, "gathered keys' exponents", ELEMENT_INT8, 1, out, 1);
    add_array(call, CHECK_OUTPUT, "gathered values' exponents", ELEMENT_INT8, 1, out, 1);
    add_snapped(call, keys, n_rows, dim, snapped_rows(r, n_rows, dim, NORMAL));
    add_snapped(call, values, n_rows, dim, snapped_rows(r, n_rows, dim, NORMAL));
    add_filled(call, "slots", sizeof *slots, size[0], 1, slots);
}

static void run_kv_gather(const struct ops *ops, struct device *dev, const int *size,
                          void *const *at) {
    struct kv_layer to = {at[0], at[1], at[2], at[3]}, from = {at[4], at[6], at[5], at[7]};
    ops->kv_gather(dev, &to, &from, at[8], size[0], size[1], size[2]);
}

/* Queries, some of them huge or zero: ordinary scores, one that wins, ties. */
static void make_attention(struct check_call *call, struct random *r, const int *size) {
    static const char *keys[2] = {"keys", "keys' exponents"};
    static const char *values[2] = {"values", "values' exponents"};
    static const int scales[] = {0, 0, 40, -200};
    int n_q = size[0] * size[2], n_kv = size[1] * size[3], dim = size[4];
    float *q = drawn_floats(r, n_q, dim, NORMAL);
    for (int row = 0; row < n_q; row++)
        for (int d = 0; d < dim; d++)
            q[row * dim + d] = ldexpf(q[row * dim + d], scales[row % 4]);
    add_output(call, "y", size[0], size[2] * dim);
    add_filled(call, "q", sizeof *q, n_q, dim, q);
    add_snapped(call, keys, n_kv, dim, snapped_rows(r, n_kv, dim, NORMAL));
    add_snapped(call, values, n_kv, dim, snapped_rows(r, n_kv, dim, N_DISTRIBUTIONS));
}

static void run_attention(const struct ops *ops, struct device *dev, const int *size,
                          void *const *at) {
    struct kv_layer kv = {at[2], at[4], at[3], at[5]};
    struct attention_shape shape = {size[2], size[3], size[4], 1 / sqrt((double)size[4]), KV_BFP16};
    ops->attention(dev, at[0], at[1], &kv, size[0], size[1], &shape, CHECK_SITE);
}

enum { CHECK_PAGE = 16 };

/* Every third sequence has three new tokens, the others one. */
static int new_tokens(int sequence) {
    return sequence % 3 == 2 ? 3 : 1;
}

static void make_paged(struct check_call *call, struct random *r, const int *size) {
    static const char *keys[2] = {"keys", "keys' exponents"};
    static const char *values[2] = {"values", "values' exponents"};
    int dim = size[4], pages = size[0] * ((size[1] + CHECK_PAGE - 1) / CHECK_PAGE), n = 0;
    for (int i = 0; i < size[0]; i++)
        n += new_tokens(i);
    int n_kv = pages * CHECK_PAGE * size[3];
    add_output(call, "y", n, size[2] * dim);
    add_filled(call, "q", sizeof(float), n * size[2], dim,
               drawn_floats(r, n * size[2], dim, NORMAL));
    add_snapped(call, keys, n_kv, dim, snapped_rows(r, n_kv, dim, NORMAL));
    add_snapped(call, values, n_kv, dim, snapped_rows(r, n_kv, dim, N_DISTRIBUTIONS));
}

struct planned {
    struct attention_plan *plan;
    int pages; /* of the pool */
};

/* The pages of the pool go to the sequences from the last one down. */
static struct planned plan_of(const struct ops *ops, struct device *dev, const int *size,
                              const struct attention_variant *variant) {
    struct attention_shape shape = {size[2], size[3], size[4], 1 / sqrt((double)size[4]), KV_BFP16};
    int each = (size[1] + CHECK_PAGE - 1) / CHECK_PAGE, pages = size[0] * each;
    int32_t *indices = host_array((size_t)pages, sizeof *indices);
    int32_t *qo = host_array((size_t)size[0] + 1, sizeof *qo);
    int32_t *indptr = host_array((size_t)size[0] + 1, sizeof *indptr);
    int32_t *last = host_array((size_t)size[0], sizeof *last);
    struct error err;
    for (int i = 0; i < pages; i++)
        indices[i] = pages - 1 - i;
    qo[0] = indptr[0] = 0;
    for (int i = 0; i < size[0]; i++) {
        qo[i + 1] = qo[i] + new_tokens(i);
        indptr[i + 1] = indptr[i] + each;
        last[i] = (size[1] - 1) % CHECK_PAGE + 1;
    }
    struct paged_batch batch = {size[0], CHECK_PAGE, pages, qo, indptr, indices, last};
    struct planned p = {ops->attention_plan_new(dev, &err), pages};
    if (p.plan && ops->attention_plan(dev, p.plan, &batch, &shape, variant, &err)) {
        ops->attention_plan_free(dev, p.plan);
        p.plan = NULL;
    }
    free(indices);
    free(qo);
    free(indptr);
    free(last);
    return p;
}

static void make_attend(struct check_call *call, struct random *r, const int *size) {
    make_paged(call, r, size);
    float *slopes = random_rows(r, 1, size[2], NORMAL);
    for (int i = 0; i < size[2]; i++)
        slopes[i] *= 0.01f;
    add_filled(call, "slopes", sizeof *slopes, 1, size[2], slopes);
}

/* Even numbers of sequences: the engine's own cache, causal; odd ones: another layout, with a
 * window, a soft cap and slopes. */
static void run_attend(const struct ops *ops, struct device *dev, const int *size,
                       void *const *at) {
    bool plain = size[0] % 2 == 0;
    struct attention_variant v = {
        .causal = size[0] % 3 != 0, .window_left = 100, .soft_cap = 30, .alibi_slopes = at[6]};
    v = plain ? attention_variant_causal() : v;
    struct planned p = plan_of(ops, dev, size, &v);
    struct kv_layout layout =
        kv_layout_of(plain ? KV_NHD : KV_HND, false, p.pages, CHECK_PAGE, size[3], size[4]);
    struct kv_views views;
    struct error err;
    if (p.plan && !kv_views_of(&views, &layout, at[2], at[4], at[3], at[5], &err))
        ops->attend(dev, at[0], at[1], &views, p.plan, &v, CHECK_SITE);
    ops->attention_plan_free(dev, p.plan); /* waits */
}

/* The o, m and l of rows of attention; every `empty`th row has seen nothing. */
static void add_state(struct check_call *call, struct random *r, enum check_role role, int rows,
                      int dim, int empty) {
    static const char *const names[] = {"o", "m", "l"};
    float *parts[] = {drawn_floats(r, rows, dim, NORMAL), drawn_floats(r, rows, 1, NORMAL),
                      host_array((size_t)rows, sizeof(float))};
    for (int i = 0; i < rows; i++) {
        bool nothing = i % empty == empty - 1;
        parts[1][i] = nothing ? -INFINITY : parts[1][i];
        parts[2][i] = nothing ? 0 : 1 + (float)random_int(r, 0, 255);
        for (int d = 0; d < dim && nothing; d++)
            parts[0][(size_t)i * (size_t)dim + (size_t)d] = 0;
    }
    for (int i = 0; i < 3; i++) {
        add_filled(call, names[i], sizeof(float), rows, i ? 1 : dim, parts[i]);
        call->arrays[call->n_arrays - 1].role = role;
    }
}

static void make_merge_states(struct check_call *call, struct random *r, const int *size) {
    add_state(call, r, CHECK_INOUT, size[0], size[1], 3);
    add_state(call, r, CHECK_INPUT, size[0], size[1], 2);
}

static void run_merge_states(const struct ops *ops, struct device *dev, const int *size,
                             void *const *at) {
    struct attention_state to = {at[0], at[1], at[2]}, with = {at[3], at[4], at[5]};
    ops->merge_states(dev, &to, &with, size[0], size[1]);
}

static void make_finish_states(struct check_call *call, struct random *r, const int *size) {
    add_output(call, "y", size[0], size[1]);
    add_output(call, "lse", size[0], 1);
    add_state(call, r, CHECK_INPUT, size[0], size[1], 4);
}

static void run_finish_states(const struct ops *ops, struct device *dev, const int *size,
                              void *const *at) {
    struct attention_state state = {at[2], at[3], at[4]};
    ops->finish_states(dev, at[0], at[1], size[0] % 2 ? LSE_E : LSE_2, &state,
                       size[1] % 2 ? 0.017f : 1, size[0], size[1]);
}

static void make_kv_convert(struct check_call *call, struct random *r, const int *size) {
    static const char *rows[2] = {"rows", "rows' exponents"};
    int n = size[0] * size[1], dim = size[2];
    add_array(call, CHECK_OUTPUT, "converted rows", ELEMENT_INT16, sizeof(int16_t), n, dim);
    add_array(call, CHECK_OUTPUT, "converted rows' exponents", ELEMENT_INT8, 1, n, 1);
    add_snapped(call, rows, n, dim, snapped_rows(r, n, dim, NORMAL));
}

static void run_kv_convert(const struct ops *ops, struct device *dev, const int *size,
                           void *const *at) {
    struct kv_views to = one_page(size[0], size[1], size[2], at[0], at[0], at[1], at[1], true);
    struct kv_views from = one_page(size[0], size[1], size[2], at[2], at[2], at[3], at[3], false);
    ops->kv_convert(dev, &to.k, &from.k, 1, size[0], size[1], size[2]);
}

static void make_elementwise(struct check_call *call, struct random *r, const int *size) {
    add_output(call, "y", 1, size[0]);
    add_mixed(call, r, "the first input", size[0]);
    add_mixed(call, r, "the second input", size[0]);
}

static void run_silu_mul(const struct ops *ops, struct device *dev, const int *size,
                         void *const *at) {
    ops->silu_mul(dev, at[0], at[1], at[2], (size_t)size[0]);
}

static void run_add(const struct ops *ops, struct device *dev, const int *size, void *const *at) {
    ops->add(dev, at[0], at[1], at[2], (size_t)size[0]);
}

/* Every second row has ties; every third and all from row 9 on are greedy. */
static void make_sample(struct check_call *call, struct random *r, const int *size) {
    int n_rows = size[0], vocab = size[1];
    float *logits = host_array((size_t)n_rows * (size_t)vocab, sizeof *logits);
    struct sampling *how = host_array((size_t)n_rows, sizeof *how);
    for (int row = 0; row < n_rows; row++) {
        random_logits(r, logits + (size_t)row * (size_t)vocab, vocab, row % 2 ? 0.5f : 0);
        how[row] = random_sampling(r, vocab);
        how[row].temperature = row % 3 && row < 9 ? how[row].temperature : 0;
    }
    add_array(call, CHECK_OUTPUT, "token_ids", ELEMENT_INT32, sizeof(int32_t), n_rows, 1);
    add_filled(call, "logits", sizeof *logits, n_rows, vocab, logits);
    add_filled(call, "how", sizeof *how, n_rows, 1, how);
    call->arrays[call->n_arrays - 1].role = CHECK_ON_HOST;
}

static void run_sample(const struct ops *ops, struct device *dev, const int *size,
                       void *const *at) {
    ops->sample(dev, at[0], at[1], at[2], size[0], size[1], CHECK_SITE);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define OP(op, list, ...)                                                                          \
    { .name = #op, .shapes = list, .n_shapes = COUNT(list), .run = run_##op, __VA_ARGS__ }

static const struct check_op ops[] = {
    OP(embed, rows_and_cols, .make = make_embed, .sizes = {"tokens", "k"}, .speed = {8192, 1024}),
    OP(take_rows, rows_and_cols, .make = make_take_rows, .sizes = {"rows", "cols"},
       .speed = {8192, 4096}),
    OP(snap_rows, rows_and_cols, .make = make_snap_rows, .sizes = {"rows", "cols"},
       .speed = {8192, 4096}, .nan_arrays = {2}),
    OP(linear, linear_shapes, .make = make_linear, .sizes = {"tokens", "n", "k"},
       .speed = {1, 4096, 4096}),
    OP(linear_parts, linear_shapes, .make = make_linear_parts, .sizes = {"tokens", "n", "k"},
       .speed = {1, 4096, 4096}),
    OP(add_bias, rows_and_cols, .make = make_add_bias, .sizes = {"tokens", "n"},
       .speed = {8192, 4096}),
    OP(rmsnorm, rows_and_cols, .make = make_rmsnorm, .sizes = {"rows", "cols"},
       .speed = {8192, 4096}, .over = {1}, .nan_arrays = {1}),
    OP(add_rmsnorm, rows_and_cols, .make = make_add_rmsnorm, .sizes = {"rows", "cols"},
       .speed = {8192, 4096}, .nan_arrays = {1, 2}),
    OP(rope, rope_shapes, .make = make_rope, .sizes = {"tokens", "heads", "dim"},
       .speed = {8192, 32, 128}),
    OP(norm_rope, rope_shapes, .make = make_norm_rope, .sizes = {"tokens", "heads", "dim"},
       .speed = {8192, 32, 128}),
    OP(kv_append, kv_append_shapes, .make = make_kv_append, .sizes = {"tokens", "heads", "dim"},
       .speed = {8192, 8, 128}, .nan_arrays = {4, 5}),
    OP(kv_gather, kv_append_shapes, .make = make_kv_gather, .sizes = {"tokens", "heads", "dim"},
       .speed = {8192, 8, 128}),
    OP(attention, attention_shapes, .make = make_attention,
       .sizes = {"tokens", "kv_len", "heads", "kv_heads", "dim"}, .speed = {1, 4096, 32, 8, 128},
       .nan_arrays = {1}),
    OP(attend, paged_shapes, .make = make_attend,
       .sizes = {"sequences", "positions", "heads", "kv_heads", "dim"},
       .speed = {64, 1024, 32, 8, 128}, .nan_arrays = {1}),
    OP(merge_states, rows_and_cols, .make = make_merge_states, .sizes = {"rows", "dim"},
       .speed = {65536, 128}),
    OP(finish_states, rows_and_cols, .make = make_finish_states, .sizes = {"rows", "dim"},
       .speed = {65536, 128}, .over = {2}),
    OP(kv_convert, kv_append_shapes, .make = make_kv_convert, .sizes = {"tokens", "heads", "dim"},
       .speed = {8192, 8, 128}),
    OP(silu_mul, counts, .make = make_elementwise, .sizes = {"count"}, .speed = {8192 * 4096},
       .over = {1, 2}),
    OP(add, counts, .make = make_elementwise, .sizes = {"count"}, .speed = {8192 * 4096},
       .over = {1, 2}),
    OP(sample, sample_shapes, .make = make_sample, .sizes = {"rows", "vocab"},
       .speed = {16, 131072}, .nan_arrays = {1}),
};

const struct check_op *check_find_op(const char *name) {
    for (size_t i = 0; i < COUNT(ops); i++)
        if (!strcmp(ops[i].name, name))
            return &ops[i];
    return NULL;
}
