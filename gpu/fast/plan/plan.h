/*
 * plan.h - the plan of attention over a paged cache: what the host works out once per
 * pass, so that the kernels of every layer find their work in a few arrays.
 *
 *     gpu/fast/plan/plan.cu            makes it
 *     gpu/fast/plan/shares.cu          which thread block of the decode kernel does what
 *     gpu/fast/decode/decode.cu        decode: few rows per sequence
 *     gpu/fast/decode/decode_floats.cu decode over caches of floats
 *     gpu/fast/decode/merge.cu         its results where several thread blocks had a row, in order
 *     gpu/fast/prompt/work.cu          work for the prompt kernels:
 *     gpu/fast/prompt/prompts.cu       sequences of many tokens
 *     gpu/fast/prompt/cascade.cu       tiles that sequences share, behind decode
 *     gpu/fast/prompt/chains.cu        the results of both, merged in order
 *
 * A row is one token and one query head; the rows of one kv head of a sequence are numbered
 * token * group + head in the group. Decode takes up to 8 of them together, a row group.
 */
#ifndef SAMEBITS_GPU_FAST_PLAN_PLAN_H
#define SAMEBITS_GPU_FAST_PLAN_PLAN_H

#include "gpu/fast/prompt/prompt.h"
#include "gpu/ptx/division.h"

enum {
    GROUP_ROWS = 8,
    DECODE_ROWS = 48,  /* of a kv head: sequences with more are prompts (tests/bench/README.md), */
    DECODE_TOKENS = 4, /* but not those of so few tokens, which may share tiles, too */
};

struct row_group {
    int32_t sequence, pages;        /* its first page, counted in the page indices */
    int32_t first_token, first_row; /* of the sequence in q and y; of the group in the sequence */
    int32_t n_rows, before;         /* positions in front of the sequence's first token */
    int32_t kv_len;                 /* the end of what its rows see */
    int32_t first_tile, n_tiles;    /* the tiles that they see: counted from the first one here, and
                                       in shares and splits */
    int32_t length;                 /* of the sequence */
    int32_t own_place; /* where the results of its tiles are kept, a place a tile, if its rows have
                          shared tiles before them (token_chain); else -1 */
};

/*
 * A share of the tiles of all row groups, in their order; it is the work of one thread block for
 * each kv head. (Blocks with neighbouring numbers have the heads of one share: they read
 * neighbouring memory at the same time.) A share begins and ends anywhere, so a row group may be
 * split between shares that follow each other; split_first is the number of the split that the
 * share begins in the middle of, split_last of the one that it leaves for others to go on with; -1:
 * none.
 */
struct alignas(16) decode_share {
    struct share_begin {
        int32_t n_tiles, tile; /* how many; the first, counted from the sequence's beginning */
        int32_t pages, kv_len; /* copies of the group's: what the first loads need, in 16 bytes */
    } begin;
    int32_t group, split_first, split_last;
    struct row_group first; /* a copy of the group's: one load less to wait for */
};

/* A row group in several shares. The first share merges its tiles; each later tile's result is
 * kept, and a kernel of its own merges them in order. */
struct decode_split {
    int32_t partial; /* where its results are: the first share's merged ones, then a place a tile */
    int32_t n_tiles; /* in all; 0: no split */
    int32_t first_end; /* the tiles 0 ... first_end - 1 are the first share's */
    int32_t group;     /* its row group */
};

/* What the kernels see of the plan; device memory. */
struct plan_arrays {
    const int32_t *qo_indptr;      /* [n_sequences + 1] */
    const int32_t *kv_indptr;      /* [n_sequences + 1] */
    const int32_t *kv_lens;        /* [n_sequences] */
    const int32_t *token_sequence; /* [n_tokens] */
    const int32_t *pages;          /* [kv_indptr[n_sequences]] */
    const struct row_group *groups;
    const struct decode_share *shares; /* [n_shares] */
    const struct decode_split *splits; /* [n_shares] */
    int page_size, n_sequences, n_tokens;
    struct division by_page_size;
};

/*
 * What the prompt kernels keep is merged later, a chain for each token: the results of the
 * row lists that it lies in, a segment each. These are of its long sequence, and all; or of the
 * stretches that its sequence is a member of, and behind them come those of its row group.
 */
struct chain_segment {
    int32_t row_list; /* the first of those that the token lies in one of */
    int32_t index;    /* of the token in their list of tokens */
};

struct token_chain {
    int32_t first_segment, n_segments; /* 0: nothing is to be merged */
    int32_t own_tile;                  /* the first that is not shared; 0: all are the sequence's */
    int32_t own_place, own_tiles;      /* where the results of the sequence's own tiles are: for
                                          each of its row groups, so many */
    int32_t own_row;                   /* the token's first row in the sequence */
};

/* Elements of the arrays of a work_plan. */
struct work_sizes {
    int counts, row_lists, tiles, items, tokens, segments, chains, places;
};

/* The arrays, or where they are filled: sizes tells how far. */
struct work_arrays {
    int32_t *counts;
    struct row_list *row_lists;
    struct digit_tile *tiles;
    struct prompt_item *items;
    int32_t *tokens;
    struct chain_segment *segments;
    struct token_chain *chains; /* [tokens of the batch] */
    struct work_sizes n;
};

/* Work for the prompt kernels, and the chains: gpu/fast/prompt/work.cu. */
struct work_plan {
    struct work_arrays host, device;
    struct work_sizes room; /* what there is memory for */
    unsigned char *host_bytes, *device_bytes;
    size_t bytes;
    uint8_t *digits; /* device; may be NULL */
    float *kept;     /* device: the results of all places; may be NULL */
    size_t digits_bytes, kept_bytes;
};

/* The shared tiles of a batch. */
struct cascade_plan {
    struct cascade cascade;
    struct work_plan plan;
    struct attention_work work;
    bool no_memory; /* there was none: not asked for again */
};

/* The sequences of many tokens. */
struct prompts_plan {
    struct work_plan plan;
    struct attention_work *work; /* host: what is launched, one after the other */
    int n_work, most_work;
    bool chains; /* some are merged */
};

struct attention_plan {
    struct attention_shape shape;
    struct attention_variant variant; /* what it says of causal, window and mask */
    struct plan_arrays arrays;
    int n_tokens, longest; /* most positions of a sequence */
    int n_shares;          /* the decode kernel has n_kv_heads thread blocks for each */
    int n_groups, n_tiles, n_splits;
    int n_own, n_partial;         /* places of partial: those of own_place come first; all */
    int64_t n_slots;              /* of the pool */
    int longest_split, most_rows; /* most tiles that are left to be merged; most rows of a group */
    int decode_tokens;            /* sequences with more are prompts, and in no row group */
    int n_prompts;
    unsigned char *host, *device; /* all arrays, one after the other */
    size_t host_bytes, device_bytes;
    float *partial; /* device: [n_partial, n_kv_heads, kept_floats] */
    size_t partial_bytes;
    struct cascade_plan shared;
    struct prompts_plan prompts;
};

/* The head dimension as the decode kernel has it: rounded up to one that a kernel was made for.
 * There are fewer of them for variants and for all types but bfp16: they take long to compile. */
static inline int decode_dim(int head_dim, bool few) {
    if (few)
        return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
    return head_dim <= 128 ? (head_dim + 31) / 32 * 32 : head_dim <= 192 ? 192 : 256;
}

/* The warps of a block of the decode kernel, and how many blocks work on a processor at once. Where
 * computing takes longer than memory, as with 8-bit floats, there are four warps to a block: what a
 * warp does but once a tile (the ends of the softmax, the merge) is spared by warps that have more
 * of the tile. */
static __host__ __device__ constexpr int decode_warps(int dim, enum kv_type type) {
    return (type == KV_E4M3 || type == KV_E5M2) && dim <= 128 ? 4 : 8;
}

static __host__ __device__ constexpr int decode_blocks(int dim, enum kv_type type) {
    if (decode_warps(dim, type) == 4)
        return 4;
    return dim * (type == KV_BFP8 ? 1 : 2) > 256 ? 1 : 2;
}

/* Whether the variant is the plain one: attention_variant_causal(). */
static inline bool attention_is_causal_only(const struct attention_variant *v) {
    return v->causal && v->window_left < 0 && !(v->soft_cap > 0) && !v->mask_form &&
           !v->alibi_slopes && !v->sinks && !v->lse && !v->m;
}

/* Whether sequence i is a prompt; how many row groups the others have. */
bool attention_plan_is_prompt(const struct attention_plan *p, const struct paged_batch *b, int i);
int attention_plan_count_groups(const struct attention_plan *p, const struct paged_batch *b,
                                int heads_per_group);

/* The tiles of sequence i from number own_tile on, which its rows see: all of its row groups work
 * on the same ones, on one at least, which may have no positions. end: in positions. */
struct own_tiles {
    int first, n, end;
};
struct own_tiles attention_plan_own(const struct attention_plan *p, const struct paged_batch *b,
                                    int i, int own_tile);

/* Fills groups, shares and splits, and the plan's counts of them. Returns 0, or -1 with err set:
 * too much work. */
int attention_plan_share(struct attention_plan *p, struct decode_share *shares,
                         struct decode_split *splits, struct row_group *groups,
                         const struct paged_batch *b, struct error *err);

/* ---- work for the prompt kernels: gpu/fast/prompt/work.cu ----------------------------------- */

static inline int blocks_of(int count, int size) {
    return (count + size - 1) / size;
}

/* An array of n elements begins *bytes behind the piece's beginning; *bytes moves behind it. */
template <class T>
static inline void work_place(T **array, unsigned char *piece, size_t *bytes, int n) {
    *array = piece ? (T *)(piece + *bytes) : NULL;
    *bytes += (sizeof(T) * (size_t)n + 15) / 16 * 16;
}

/* What may be kept, and what the results at so many places take. */
static const size_t most_kept_bytes = (size_t)1 << 29;

size_t work_kept_bytes(int places, const struct attention_shape *shape);

/* Makes room for n. own_digits: and for digits of its own, because passes like these are recorded.
 * What there is not enough of grows by half. Then the arrays of plan.host are empty: their sizes
 * are 0. Returns 0, or -1 with err set: no memory; everything is freed then. */
int work_plan_reserve(struct device *dev, struct work_plan *plan,
                      const struct attention_shape *shape, const struct work_sizes *n,
                      bool own_digits, struct error *err);
void work_plan_free(struct device *dev, struct work_plan *plan);

/* A row list over n_tiles tiles, cut into items of `each`; its digits begin at tile `tile` of its
 * work, it is number `number` there. n_tiles 0: an item nevertheless. */
struct work_rows {
    struct row_list list; /* n_rows: to the end of its tokens; 64 are taken. What is kept is set */
    int number, tile, first_tile, n_tiles, end, each;
    bool kept;   /* else the rows are finished, and n_tiles <= each */
    bool begins; /* the chains of the rows: the first item's tiles are merged */
};
void work_plan_add_rows(struct work_arrays *to, const struct work_rows *rows);

/* The items and results that it has. */
int work_items_of(int n_tiles, int each);
int work_results_of(int n_tiles, int each, bool begins);

/* Copies the arrays to the device. */
void work_plan_upload(struct device *dev, struct work_plan *plan);

/* The work whose arrays begin at `first`; host.counts has, from first->counts on, how long they
 * are. */
struct attention_work work_plan_work(const struct work_plan *plan, const struct work_sizes *first,
                                     const struct plan_arrays *a);

/* Sequences of many tokens. Returns 0, or -1 with err set: no memory. */
int attention_plan_prompts(struct device *dev, struct attention_plan *p,
                           const struct paged_batch *b, struct error *err);
void attention_plan_prompts_free(struct device *dev, struct prompts_plan *p);

/* Tiles that sequences share. attention_plan_cascade finds them, where that pays; it is called
 * before the shares are made, which leave them out. Returns 0, or -1 with err set. */
int attention_plan_cascade(struct device *dev, struct attention_plan *p,
                           const struct paged_batch *b, struct error *err);
void attention_plan_cascade_free(struct device *dev, struct cascade_plan *p);

static inline bool attention_plan_has_cascade(const struct attention_plan *p) {
    return p->shared.cascade.n_stretches > 0;
}

/* Results of row groups, device memory [places, n_kv_heads, kept_floats(GROUP_ROWS, dim)]. */
struct group_results {
    float *rows;
    int dim;
};

static inline size_t group_results_bytes(size_t places, const struct attention_shape *shape) {
    return places * (size_t)shape->n_kv_heads *
           kept_floats(GROUP_ROWS, decode_dim(shape->head_dim, true)) * sizeof(float);
}

/* The work, and the chains, behind decode, whose results for own tiles are given. */
void gpu_attention_shared(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct kv_views *kv, const struct attention_variant *variant,
                          const struct attention_plan *plan, const struct group_results *own);

/* Merges the chains of a work and writes y. own: NULL where chains have no own tiles. */
void gpu_attention_chains(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct attention_variant *variant, int n_tokens,
                          const struct work_plan *plan, const struct group_results *own);

/* Where the rows of a cache lie for decode: row number page * page_rows + position *
 * position_rows + head * head_rows, in units of a row, of keys and values alike. */
struct decode_cache {
    const void *k, *v;
    enum kv_type type;
    const int8_t *k_exponents, *v_exponents; /* of the types that have them */
    uint32_t page_rows, position_rows, head_rows;
};

/* Decode for the row groups of the plan: the shares, then the merge of those that were split.
 * What has few sizes of kernels (decode_has_few) has them from phase 9 on, and caches of floats
 * from phase 11 on; until then versions 1 to 3 of attend read them. */
struct attention_arguments;
void gpu_attention_decode(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct decode_cache *cache, const struct attention_variant *variant,
                          const struct attention_plan *plan);
void gpu_attention_decode_new(struct gpu_device *gpu, const struct attention_arguments *a,
                              const struct decode_cache *cache,
                              const struct attention_variant *variant,
                              const struct attention_plan *plan, const struct new_tokens *t);
void gpu_attention_decode_variants(struct gpu_device *gpu, const struct attention_arguments *a,
                                   const struct decode_cache *cache,
                                   const struct attention_variant *variant,
                                   const struct attention_plan *plan) LINKED_LATER;
void gpu_attention_decode_floats(struct gpu_device *gpu, const struct attention_arguments *a,
                                 const struct decode_cache *cache,
                                 const struct attention_variant *variant,
                                 const struct attention_plan *plan) LINKED_LATER;
void gpu_attention_merge(struct gpu_device *gpu, const struct attention_arguments *a,
                         const struct decode_cache *cache, const struct attention_variant *variant,
                         const struct attention_plan *plan);

/* Whether it is one with few sizes of kernels. */
static inline bool decode_has_few(const struct decode_cache *c, const struct attention_variant *v) {
    return c->type != KV_BFP16 || !attention_is_causal_only(v);
}

/* The prompt kernels for its long sequences, all together. */
void gpu_attention_prompts(struct gpu_device *gpu, const struct attention_arguments *a,
                           const struct kv_views *kv, const struct attention_variant *variant,
                           const struct attention_plan *plan);

/* The shared memory that the decode kernel takes, in bytes. */
int gpu_attention_decode_bytes(int head_dim, bool variant);

/* Describes any views as the decode kernel reads them. Returns false if their rows are not in one
 * piece. */
bool decode_cache_of_views(struct decode_cache *out, const struct kv_views *kv, int head_dim);

struct attention_plan *gpu_attention_plan_new(struct device *, struct error *);
void gpu_attention_plan_free(struct device *, struct attention_plan *);
int gpu_attention_plan_form(const struct attention_plan *);
int gpu_attention_plan(struct device *, struct attention_plan *, const struct paged_batch *,
                       const struct attention_shape *, const struct attention_variant *,
                       struct error *);

#endif
