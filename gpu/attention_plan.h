/*
 * attention_plan.h - the plan of attention over a paged cache: what the host works out once per
 * pass, so that the kernels of every layer find their work in a few arrays.
 *
 *     attention_plan.cu    makes it
 *     attention_shares.cu  which thread block does what
 *     attention_paged.cu   the op, and versions 1 to 3
 *     attention_decode.cu  version 4: few rows per sequence, on tensor cores
 *     attention_merge.cu   its end, where several thread blocks worked on a sequence
 *
 * A row is one token and one query head; the rows of one kv head of a sequence are numbered
 * token * group + head in the group. Version 4 takes up to 8 of them together, a row group.
 */
#ifndef SAMEBITS_ATTENTION_PLAN_H
#define SAMEBITS_ATTENTION_PLAN_H

#include "gpu/gpu.h"

enum { GROUP_ROWS = 8 };

struct row_group {
    int32_t sequence, pages;        /* its first page, counted in the page indices */
    int32_t first_token, first_row; /* of the sequence in q and y; of the group in the sequence */
    int32_t n_rows, before;         /* positions in front of the sequence's first token */
    int32_t kv_len, n_tiles;        /* what its last row sees */
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
        int32_t n_tiles, tile; /* how many, from which one of the first row group on */
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
};

/* A sequence with too many rows for row groups: it gets launches of its own. */
struct long_sequence {
    int32_t first_token, n_tokens, kv_len, pages;
};

struct attention_plan {
    struct attention_shape shape;
    struct plan_arrays arrays;
    int n_tokens, longest; /* most positions of a sequence */
    int n_shares;          /* version 4 has n_kv_heads thread blocks for each */
    int n_groups, n_tiles, n_splits, n_partial;
    int longest_split, most_rows; /* most tiles that are left to be merged; most rows of a group */
    struct long_sequence *long_sequences; /* host */
    int n_long;
    unsigned char *host, *device; /* all arrays, one after the other */
    size_t host_bytes, device_bytes;
    float *partial; /* device: [n_partial, n_kv_heads, GROUP_ROWS, partial_floats] */
    size_t partial_bytes;
};

/* The head dimension as version 4 has it: rounded up to one that a kernel was made for. */
static inline int decode_dim(int head_dim) {
    return head_dim <= 128 ? (head_dim + 31) / 32 * 32 : head_dim <= 192 ? 192 : 256;
}

/* What a row leaves of a tile: its values, then m and l, and two floats more to keep vectors
 * aligned. */
static inline __host__ __device__ int partial_floats(int dim) {
    return dim + 4;
}

/* Whether sequence i has too many tokens for row groups; how many groups the others have. */
bool attention_plan_is_long(const struct paged_batch *b, int i);
int attention_plan_count_groups(const struct paged_batch *b, int heads_per_group);

/* Fills groups, shares and splits, and the plan's counts of them. Returns 0, or -1 with err set:
 * too much work. */
int attention_plan_share(struct attention_plan *p, struct decode_share *shares,
                         struct decode_split *splits, struct row_group *groups,
                         const struct paged_batch *b, struct error *err);

/* Version 4 for the row groups of the plan: the shares, then the merge of those that were split. */
struct attention_arguments;
void gpu_attention_decode(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct attention_plan *plan);
void gpu_attention_merge(struct gpu_device *gpu, const struct attention_arguments *a,
                         const struct attention_plan *plan);

struct attention_plan *gpu_attention_plan_new(struct device *, struct error *);
void gpu_attention_plan_free(struct device *, struct attention_plan *);
int gpu_attention_plan(struct device *, struct attention_plan *, const struct paged_batch *,
                       const struct attention_shape *, struct error *);

#endif
