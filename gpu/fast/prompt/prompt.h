/*
 * prompt.h - what the files of attention's prompt kernels share: operands as digits, rows, and the
 * items that they are worked on in.
 *
 *     digits.cu   splits queries, keys and values into 8-bit digits
 *     mma.cu      version 2 of attention: a warp's products (compute capability 8.0 and later)
 *     wgmma.cu    version 3: products of four warps together (9.0)
 *     short.cu    the same for sequences of few positions, which it splits itself
 *     item.h      what these two do alike: a tile's softmax, the end of a row, the launch
 *     work.cu     their work for a batch: prompts.cu, whole prompts; cascade.cu, shared tiles
 *     chains.cu   merges what they kept
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_PROMPT_H
#define SAMEBITS_GPU_FAST_PROMPT_PROMPT_H

#include "gpu/attention.h"
#include "gpu/ptx/division.h"

/* ---- operands as digits: gpu/fast/prompt/digits.cu
 * ---------------------------------------------------
 *
 * For versions 2 and 3. m = 256 * high + low, high signed, low unsigned (but for the queries of
 * version 3, which stay in registers: products.h). Rows of digits are cut into columns of 16 bytes,
 * and rows into groups of R; within a group
 *
 *     column 0, high digits: row 0, row 1, ... row R-1, 16 bytes each
 *     column 0, low digits:  the same
 *     column 1, high digits: ...
 *
 * so that 8 neighbouring rows of a column are 128 bytes in a row: what tensor cores load in one go
 * without a bank conflict, and what a wgmma descriptor can describe.
 */
enum { QUERY_ROWS = 64, SHORT_POSITIONS = 128 /* of sequences for short.cu */ };

struct attention_digits {
    uint8_t *queries; /* [n_kv_heads, n_groups] of QUERY_ROWS rows of dim; rows behind the end: 0.
                         Only for version 2: version 3 splits them itself */
    uint8_t *tiles;   /* [n_kv_heads, n_tiles] of tile_bytes: 256 keys in groups of `keys` rows of
                         dim; then the values on their side, in groups of value_dims rows: the digits
                         of one dimension at all 256 positions; both ordered by column_of */
    int8_t *query_exponents;   /* [n_kv_heads, n_groups * QUERY_ROWS] */
    int8_t *exponents;         /* [n_kv_heads, n_tiles * 256, 2]: of the key and of the value */
    int n_groups, n_tiles;     /* that there is room for */
    int dim, keys, value_dims; /* dim: head_dim rounded up, with zeros */
    bool without_queries;
};

enum { NOT_FINITE = -128 }; /* in place of the exponent of a row that holds a NaN or an infinity */

/* Bytes from one column of a group to the next, and of all columns of `bytes_per_row` digits. */
static __host__ __device__ constexpr int column_bytes(int rows) {
    return 2 * 16 * rows;
}
static __host__ __device__ constexpr int group_bytes(int rows, int bytes_per_row) {
    return 2 * rows * bytes_per_row;
}
static __host__ __device__ constexpr int tile_bytes(int dim) {
    return 4 * ATTENTION_TILE * dim;
}

/* What all digits take together: what is behind attention_work.digits. */
static inline size_t digit_bytes(int n_groups, int n_tiles, int n_kv_heads, int dim) {
    size_t queries = (size_t)n_groups * (size_t)(QUERY_ROWS * (2 * dim + 1));
    size_t tiles = (size_t)n_tiles * (size_t)(tile_bytes(dim) + 2 * ATTENTION_TILE);
    return (size_t)n_kv_heads * (queries + tiles);
}

/*
 * Lane t of a quad has columns 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t of 16 of a product. Positions and
 * dimensions are ordered so that these are four neighbours: column_of is the column of number i.
 * So the weights that a lane finds, of 32 positions, are numbers 4 t .. 4 t + 3 and 16 + 4 t ..
 * 16 + 4 t + 3 of the summands, as the next product wants them; and its sums are one vector of a
 * row of y.
 */
static __device__ __forceinline__ int column_of(int i) {
    return i / 16 * 16 + i % 4 / 2 * 8 + i % 16 / 4 * 2 + i % 2;
}

/* ---- rows, and what is done with them ----------------------------------------------------------
 *
 * A row is one token and one query head; the rows of one kv head are numbered token * group + head.
 * Versions 2 and 3 take QUERY_ROWS of them together: a row list. Its tokens are those of one
 * sequence, and its rows are finished, or those of many sequences that share tiles
 * (gpu/fast/plan/plan.h: cascade). What rows find that are not finished is kept, to be merged.
 */
struct row_list {
    int32_t tokens;            /* where its tokens begin in attention_work's; -1: a sequence's */
    int32_t first_row, n_rows; /* row r is token (first_row + r) / group of them */
    int32_t place, n_results;  /* what is kept of it; -1, 0: nothing */
    int32_t sequence, first_token, before, length; /* of the sequence: its number, its first token
                                                      in q and y, what is in front of that, all */
};

/* Rows, and tiles that all of them may see. */
struct prompt_item {
    int32_t rows;          /* which row_list */
    int32_t tile, n_tiles; /* of those that are split to digits */
    int32_t first_tile;    /* what the first is in its sequences */
    int32_t end;           /* positions from here on, no row sees */
    int32_t place;         /* of its first result; -1: the rows are finished */
    int32_t merges;        /* 1: its tiles are merged to one result; 0: each gives one */
    struct row_list list;  /* a copy: one load less to wait for */
};

/* A tile: the begin of the pages of a sequence that has it, which of its tiles it is, and how many
 * of its positions exist. */
struct digit_tile {
    int32_t pages, tile, n;
};

enum { COUNT_ROW_LISTS, COUNT_TILES, COUNT_ITEMS, N_COUNTS };

/* Device memory. */
struct attention_work {
    const int32_t *counts; /* [N_COUNTS] how many of these there are: */
    const struct row_list *row_lists;
    const struct digit_tile *tiles;
    const struct prompt_item *items;
    const int32_t *tokens;         /* of the batch */
    const int32_t *token_sequence; /* as in the plan */
    const int32_t *qo_indptr, *kv_lens, *pages;
    uint8_t *digits; /* room for the digits of them all; NULL: scratch memory is taken */
    float *kept;     /* [places, n_kv_heads, kept_floats]; NULL: all are finished */
    int n_row_lists, n_tiles, n_items; /* the counts, on the host */
    int most_row_lists, most_tiles;    /* that there is room for */
    int n_at_once;                     /* items of a kv head that blocks have at a time, or so */
    int group;                         /* query heads of a kv head: of attention_work_of */
    struct division by_group;
    bool is_short; /* its sequences have up to SHORT_POSITIONS positions */
    bool overlaps; /* splitting may start while the kernel before runs, which has waited for those
                      before it */
};

/* The work, or an empty one where that is NULL, with the query heads of a kv head. */
static inline struct attention_work attention_work_of(const struct attention_work *work,
                                                      const struct attention_arguments *a) {
    struct attention_work w = {};
    if (work)
        w = *work;
    w.group = a->n_heads / a->n_kv_heads;
    w.by_group = division_by(w.group);
    return w;
}

/* What a row leaves of a tile, or of several. */
struct row_result {
    float *values; /* of its dimensions */
    float *sums;   /* m (a NaN: it sees nothing) and l */
};

/* The floats of the results of n rows that lie together: the values of all, then the sums of all.
 * So the values of each begin and end with a sector of memory: 32 bytes, written as a whole. */
static inline __host__ __device__ size_t kept_floats(int n, int dim) {
    return (size_t)n * (size_t)(dim + 2);
}

/* Row `row` of n, whose results begin at `kept`. */
static inline __host__ __device__ struct row_result row_result_of(float *kept, int n, int dim,
                                                                  int row) {
    return {kept + row * dim, kept + n * dim + 2 * row};
}

/* The head dimension as versions 2 and 3 have it with variants and where results are kept: fewer
 * sizes of kernels, which take long to compile. */
static inline int prompt_dim(int head_dim) {
    return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

/* A row: which query it is, and what it sees. */
struct prompt_row {
    int token, head;   /* of the op */
    int first, end;    /* positions that it sees, masks aside */
    int i, at, length; /* the query's number in its sequence, its position, the sequence's length */
    const uint8_t *mask;
    float slope;
};

/* Row `row` of the list. */
template <bool VARIANT>
static __device__ __forceinline__ struct prompt_row
prompt_row_of(const struct attention_variant *v, const struct attention_work *work,
              const struct row_list *list, int kv_head, int row) {
    struct prompt_row r = {};
    int number = list->first_row + row, sequence = list->sequence, before = list->before;
    r.i = quotient(number, work->by_group);
    r.head = kv_head * work->group + number - r.i * work->group;
    r.token = list->first_token + r.i;
    r.length = list->length;
    if (list->tokens >= 0) {
        r.token = work->tokens[list->tokens + r.i];
        sequence = work->token_sequence[r.token];
        r.i = r.token - work->qo_indptr[sequence];
        r.length = work->kv_lens[sequence];
        before = r.length - (work->qo_indptr[sequence + 1] - work->qo_indptr[sequence]);
    }
    r.at = before + r.i;
    r.end = r.at + 1;
    if (VARIANT) {
        r.first = attention_first(v, before, r.i);
        r.end = attention_end(v, before, r.i, r.length);
        r.mask = v->mask_form ? v->mask + v->mask_offsets[sequence] : NULL;
        r.slope = v->alibi_slopes ? v->alibi_slopes[r.head] : 0;
    }
    return r;
}

/* The score of position p, or a NaN when the row does not see it: fmaxf passes over it, so that the
 * largest score of a tile is a NaN only of a row that sees nothing there. A score that is a NaN is
 * a fault of the row: infinity. */
static __device__ __forceinline__ float
varied_score(const struct prompt_row *r, const struct attention_variant *v, float s, int p) {
    bool sees = p >= r->first && p < r->end && attention_shows(v, r->mask, r->i, p, r->length);
    s = attention_score(v, s, r->at, p, r->slope);
    return !sees ? NAN : s == s ? s : INFINITY;
}

/* Rows `number` of the sequence of the arguments, which are causal. */
static __device__ __forceinline__ struct row_list list_of(const struct attention_arguments *a,
                                                          int number) {
    int all = a->n_tokens * (a->n_heads / a->n_kv_heads), first_row = number * QUERY_ROWS;
    return {-1,
            first_row,
            min((int)QUERY_ROWS, all - first_row),
            -1,
            0,
            0,
            0,
            a->kv_len - a->n_tokens,
            a->kv_len};
}

/* The work of a block, item after item: of the work, or of the sequence of the arguments. */
static __device__ __forceinline__ struct prompt_item item_of(const struct attention_arguments *a,
                                                             const struct attention_work *work,
                                                             const struct attention_digits *d,
                                                             int i) {
    if (work->items)
        return work->items[i];
    int number = d->n_groups - 1 - i; /* those with most to see go first */
    struct row_list list = list_of(a, number);
    int last = (list.first_row + list.n_rows - 1) / (a->n_heads / a->n_kv_heads);
    int end = list.before + last + 1;
    return {number, 0, (end + ATTENTION_TILE - 1) / ATTENTION_TILE, 0, end, -1, 1, list};
}

/* Where row `row` has its result of that place. */
template <int DIM>
static __device__ __forceinline__ struct row_result kept_at(const struct attention_arguments *a,
                                                            const struct attention_work *work,
                                                            int place, int kv_head, int row) {
    size_t number = (size_t)place * (size_t)a->n_kv_heads + (size_t)kv_head;
    return row_result_of(work->kept + number * kept_floats(QUERY_ROWS, DIM), QUERY_ROWS, DIM, row);
}

/*
 * Fills d, whose dim, keys and value_dims are set: in scratch memory, or in that of the work.
 * Queries that cannot be snapped are faults. Positions behind the end of a sequence are 0. Returns
 * false when the device has failed.
 */
bool gpu_attention_digits(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct kv_views *kv, const struct attention_work *work,
                          struct attention_digits *d);

/* Thread blocks for n pieces of work that loop over them: while recording, whatever n is, as many
 * as the GPU runs at once. */
static inline unsigned gpu_attention_blocks(const struct gpu_device *gpu, size_t n, int per_piece) {
    size_t fixed = (size_t)(4 * gpu->n_processors / per_piece + 1);
    return (unsigned)(gpu->recording ? fixed : n);
}

enum { MOST_ITEM_BLOCKS = 65535 /* of a grid's second dimension; blocks loop over items */ };

/* The blocks of versions 2 and 3: for the row groups of a sequence, or for the items of the work.
 */
static inline dim3 gpu_attention_grid(const struct gpu_device *gpu,
                                      const struct attention_arguments *a,
                                      const struct attention_work *work,
                                      const struct attention_digits *d) {
    unsigned heads = (unsigned)a->n_kv_heads;
    size_t items =
        work && work->n_items < MOST_ITEM_BLOCKS ? (size_t)work->n_items : (size_t)MOST_ITEM_BLOCKS;
    return work ? dim3(heads, gpu_attention_blocks(gpu, items, a->n_kv_heads))
                : dim3(heads, (unsigned)d->n_groups);
}

/* A prompt kernel for a head dimension. */
struct prompt_kernel {
    void (*kernel)(struct attention_arguments, struct attention_digits, struct attention_variant,
                   struct attention_work);
    int threads, shared_bytes;
    int dim, keys, value_dims; /* as in attention_digits */
    bool splits_queries;       /* itself, and may start while the keys are being split */
};

/* Splits the operands and launches the kernel: with work, for its items; else for the sequence of
 * the arguments. */
void gpu_attention_prompt_launch(struct gpu_device *gpu, const struct prompt_kernel *k,
                                 const struct attention_arguments *a, const struct kv_views *kv,
                                 const struct attention_variant *variant,
                                 const struct attention_work *work);

/* Versions 2 and 3 of attention, from phase 8 on: the kernel for this head dimension, up to 256,
 * and its launch. */
void gpu_attention_prompt_mma(struct gpu_device *gpu, const struct attention_arguments *a,
                              const struct kv_views *kv, const struct attention_variant *variant,
                              const struct attention_work *work) LINKED_LATER;
void gpu_attention_prompt_wgmma(struct gpu_device *gpu, const struct attention_arguments *a,
                                const struct kv_views *kv, const struct attention_variant *variant,
                                const struct attention_work *work) LINKED_LATER;

/* The same, as those call them for what is not plain (gpu_attention_is_plain): from phase 9 on. */
void gpu_attention_prompt_mma_variants(struct gpu_device *gpu, const struct attention_arguments *a,
                                       const struct kv_views *kv,
                                       const struct attention_variant *variant,
                                       const struct attention_work *work) LINKED_LATER;
void gpu_attention_prompt_wgmma_variants(struct gpu_device *gpu,
                                         const struct attention_arguments *a,
                                         const struct kv_views *kv,
                                         const struct attention_variant *variant,
                                         const struct attention_work *work) LINKED_LATER;

/* The shared memory that version 2 takes, in bytes. */
int gpu_attention_prompt_mma_bytes(int head_dim) LINKED_LATER;

#endif
