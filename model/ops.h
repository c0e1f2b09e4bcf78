/*
 * ops.h - the op table: everything the model asks of a device.
 *
 * One table per device: ref_ops (C over OpenBLAS), CUDA, and its emulation. The forward pass
 * (forward.c) knows only this table. All tables give the same bits (numerics.h).
 *
 * Rules for the caller
 * - Every data pointer below is memory of the device (from `alloc`), unless the comment says
 *   "host". Arrays are dense and row-major; dimensions stand in brackets, slowest first.
 * - Ops run in the order of the calls and may be still running when the call returns; `download`
 *   and `sync` wait for them.
 * - Output and input may be the same array only where the comment says "in place".
 * - Ops that snap rows to BFP16 take a `site`: a number that the caller chooses to recognise the
 *   tensor. A row that holds a NaN, an infinity or a value too large is stored as zeros, and the
 *   fault (lowest site, then lowest token) is kept until the next `sync` reports it.
 *
 * Dimension names, the same everywhere: n_tokens (rows of this call, of all sequences), hidden,
 * n_heads, n_kv_heads, head_dim, n (outputs), k (inputs), vocab.
 */
#ifndef SAMEBITS_OPS_H
#define SAMEBITS_OPS_H

#include "model/attention/cascade.h"
#include "model/attention/kv_view.h"
#include "model/attention/paged_batch.h"
#include "model/attention/variant.h"
#include "model/error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { N_PLAN_FORMS = 4, MOST_LINEAR_PARTS = 3, SHA256_BYTES = 32, HASH_PIECE_BYTES = 512 };

struct ops;
struct attention_plan; /* a device's own, like the next */
struct model;
struct device_graph;

/* What every device begins with. Its maker embeds it in a larger struct. */
struct device {
    const struct ops *ops;
    size_t bytes;      /* allocated now */
    size_t peak_bytes; /* most allocated at once; the caller may reset it to `bytes` */
};

struct device_options {
    int n_threads; /* CPU threads for matrix products; 0: as many as the library likes */
};

/* The first row that could not be snapped since the last sync. */
struct fault {
    int site;  /* -1: none */
    int token; /* row of the call that failed, counted in tokens */
};

/* Weights W[n][k] of a linear layer, each output row snapped to BFP16, in the device's own form. */
struct matrix {
    int n, k;
    void *mantissas;   /* cpu: int16 [n, k] */
    int8_t *exponents; /* [n] */
};

/* One of several linear layers of the same input. */
struct linear_part {
    float *y; /* [n_tokens, w->n] */
    const struct matrix *w;
};

/* The queries, or the keys, of a pass, before attention. */
struct head_rows {
    float *x;          /* [n_tokens, n_heads, head_dim] */
    const float *gain; /* [head_dim] of the norm of each head; NULL: there is none */
    int n_heads;
    int site; /* of its faults: rows that the norm finds not finite, or too large */
};

/* Rows of activations snapped to BFP16: row i stands for mantissas[i] * 2^(exponents[i]-15). */
struct bfp_rows {
    int16_t *mantissas; /* [n_rows, n_cols] */
    int8_t *exponents;  /* [n_rows] */
};

/* The keys and values of one layer. A slot is one token's place; each (slot, kv head) has its own
 * exponent. A contiguous cache is one sequence with slot = position. In a pool of another type than
 * bfp16 (model/attention/kv_type.h), k and v are arrays of its elements, and only bfp8 has
 * exponents: ops that take views read such a layer, attention and kv_gather do not. */
struct kv_layer {
    int16_t *k, *v;                    /* [n_slots, n_kv_heads, head_dim] mantissas */
    int8_t *k_exponents, *v_exponents; /* [n_slots, n_kv_heads] */
};

struct attention_shape {
    int n_heads, n_kv_heads, head_dim; /* query head h reads kv head h / (n_heads / n_kv_heads) */
    double scale;                      /* multiplies the scores, usually 1 / sqrt(head_dim); a
                                          negative one is a fault of every query, unless
                                          a soft cap or slopes change the scores */
    enum kv_type kv_type; /* of the cache that a plan is for: what pays depends on it */
};

/* The views of a layer of that type: NHD, keys and values apart, in pages of page_size slots. A
 * contiguous cache has any page size: its pages follow each other. */
struct kv_views kv_layer_views(const struct kv_layer *kv, enum kv_type type, int page_size,
                               int n_kv_heads, int head_dim);

/* How the next token of one row of logits is drawn. */
struct sampling {
    float temperature; /* 0: greedy */
    int top_k;         /* keep the k largest; 0: all */
    float top_p;       /* keep the fewest largest that hold this share; 1: all */
    /* Seed and sample are the key of the random numbers. With a seed that was asked for, sample is
     * the number of the answer among those of its request, 0 for the first; without one, seed is 0
     * and sample the number of the request in the run (scheduler/sequence.h). */
    uint64_t seed;
    uint32_t sample;
    uint32_t position; /* position of the token to be drawn: their counter */
};

struct ops {
    const char *name; /* as in --device */

    /* ---- device and memory ------------------------------------------------------------------ */

    /* Returns the device, or NULL with err set. close frees it; all its memory must be freed. */
    struct device *(*open)(const struct device_options *options, struct error *err);
    void (*close)(struct device *dev);

    /* Kernels come in versions, from the plain one to the best; all give the same bits. versions:
     * how many the op of that name has (0: one only). set_version picks one by number, 0 lets the
     * op choose; -1 with err set when there is no such op or version. */
    int (*versions)(const char *op);
    int (*set_version)(struct device *dev, const char *op, int version, struct error *err);

    /* Host code that threads share out: run(context, item) once for each item 0 ... n_items - 1;
     * returns when all are done. Where the device's memory is the host's, items may call
     * matrix_put, of rows of their own; other ops are called from one thread only. */
    void (*share_out)(struct device *dev, int n_items, void (*run)(void *context, int item),
                      void *context);

    /* At least 64-byte aligned, contents undefined. NULL with err set (`what` names the purpose)
     * when there is not enough; bytes = 0 gives a valid pointer. free: the same bytes, or NULL. */
    void *(*alloc)(struct device *dev, size_t bytes, const char *what, struct error *err);
    void (*free)(struct device *dev, void *data, size_t bytes);

    /* Likewise of memory that ops write and the host reads after sync, without a copy (for a few
     * bytes), and that download fills fastest. Getting it takes long. */
    void *(*alloc_host_visible)(struct device *dev, size_t bytes, const char *what,
                                struct error *err);
    void (*free_host_visible)(struct device *dev, void *data, size_t bytes);

    /* Bytes that alloc could give now: of the GPU's memory, or of the host's within its control
     * group and ulimit -v. 0: the device failed. SIZE_MAX: the host does not say. */
    size_t (*available)(struct device *dev);

    void (*upload)(struct device *dev, void *to, const void *from_host, size_t bytes);
    void (*download)(struct device *dev, void *to_host, const void *from, size_t bytes);
    void (*copy)(struct device *dev, void *to, const void *from, size_t bytes);

    /* Waits for all ops. Returns -1 with err set when the device failed. *fault tells of the first
     * row that could not be snapped and forgets it. */
    int (*sync)(struct device *dev, struct fault *fault, struct error *err);

    /*
     * Ops recorded as one: between graph_begin and graph_end they are not run but written down,
     * with the host arguments and the addresses of this moment; graph_run runs them. Nothing but
     * ops that neither get memory nor copy may be called between. The recording is of no use any
     * more when memory_changes, the number of allocations and frees so far, has changed.
     * graph_begin returns 0, graph_end the graph; or -1 and NULL with err set. graph_free: NULL is
     * fine. All five are NULL on a device without recordings.
     */
    int (*graph_begin)(struct device *dev, struct error *err);
    struct device_graph *(*graph_end)(struct device *dev, struct error *err);
    void (*graph_run)(struct device *dev, struct device_graph *graph);
    void (*graph_free)(struct device *dev, struct device_graph *graph);
    long (*memory_changes)(struct device *dev);

    /* Room for W[n][k]; then its rows, from host memory: mantissas [n_rows, k], exponents
     * [n_rows]. Returns 0, or -1 with err set. */
    int (*matrix_create)(struct device *dev, struct matrix *w, int n, int k, struct error *err);
    void (*matrix_put)(struct device *dev, struct matrix *w, int first_row, int n_rows,
                       const int16_t *mantissas, const int8_t *exponents);
    void (*matrix_free)(struct device *dev, struct matrix *w);

    /* ---- operations ------------------------------------------------------------------------- */

    /* The rows of the embedding matrix w, back in float32. Ids must be in 0 ... w->n - 1. */
    void (*embed)(struct device *dev, float *y, /* [n_tokens, w->k] */
                  const int32_t *token_ids,     /* [n_tokens] */
                  const struct matrix *w, int n_tokens);

    /* y[i] = x[rows[i]]: picks the rows whose logits are wanted. */
    void (*take_rows)(struct device *dev, float *y, /* [n_rows, n_cols] */
                      const float *x,               /* [any, n_cols] */
                      const int32_t *rows,          /* [n_rows] */
                      int n_rows, int n_cols);

    /* Row snap to BFP16. */
    void (*snap_rows)(struct device *dev, struct bfp_rows y, /* [n_rows, n_cols] */
                      const float *x,                        /* [n_rows, n_cols] */
                      int n_rows, int n_cols, int site);

    /* y = x W^T: exact integer dot products, each rounded once. */
    void (*linear)(struct device *dev, float *y, /* [n_tokens, w->n] */
                   struct bfp_rows x,            /* [n_tokens, w->k] */
                   const struct matrix *w, int n_tokens);

    /* linear for 1 to MOST_LINEAR_PARTS matrices that have one k, in one op. */
    void (*linear_parts)(struct device *dev, const struct linear_part *parts, /* host [n_parts] */
                         int n_parts, struct bfp_rows x, int n_tokens);

    /* ---- rows that ranks share: each has some columns of x and W (forward_parallel.h) -------- */

    /* largest[i] = the largest num_magnitude (numerics.h) of row i. */
    void (*row_largest)(struct device *dev, uint32_t *largest, /* [n_rows] */
                        const float *x,                        /* [n_rows, n_cols] */
                        int n_rows, int n_cols);

    /* snap_rows with the exponent of a row whose largest magnitude is largest[i], which is not
     * below that of its columns here. */
    void (*snap_part)(struct device *dev, struct bfp_rows y, /* [n_rows, n_cols] */
                      const float *x,                        /* [n_rows, n_cols] */
                      const uint32_t *largest,               /* [n_rows] */
                      int n_rows, int n_cols, int site);

    /* linear before it rounds: the integers. */
    void (*linear_sums)(struct device *dev, int64_t *sums, /* [n_tokens, w->n] */
                        struct bfp_rows x,                 /* [n_tokens, w->k] */
                        const struct matrix *w, int n_tokens);

    /* linear's rounding: y = sums * 2^(x's exponent + w's exponent - 30). Sums are below 2^53. */
    void (*round_sums)(struct device *dev, float *y, /* [n_tokens, n] */
                       const int64_t *sums,          /* [n_tokens, n] */
                       const int8_t *x_exponents,    /* [n_tokens] */
                       const int8_t *w_exponents,    /* [n] */
                       int n_tokens, int n);

    /* y += bias, in place. */
    void (*add_bias)(struct device *dev, float *y, /* [n_tokens, n] */
                     const float *bias,            /* [n] */
                     int n_tokens, int n);

    /* y = x / sqrt(mean(x^2) + eps) * gain per row (Zhang and Sennrich, 2019); in place is fine.
     * Qwen3's q/k norm is the same with a row per head: rows_per_token = heads, else 1. */
    void (*rmsnorm)(struct device *dev, float *y, /* [n_rows, n_cols] */
                    const float *x,               /* [n_rows, n_cols] */
                    const float *gain,            /* [n_cols] */
                    int n_rows, int n_cols, int rows_per_token, double eps, int site);

    /* x += branch (float32, as add), y = rmsnorm of the new x, and y snapped: the residual stream,
     * the norm that follows it, and what the next linear layer wants, in one op. Row = token. */
    void (*add_rmsnorm)(struct device *dev, float *y, /* [n_rows, n_cols] */
                        struct bfp_rows snapped,      /* [n_rows, n_cols] */
                        float *x,                     /* [n_rows, n_cols], in place */
                        const float *branch,          /* [n_rows, n_cols] */
                        const float *gain,            /* [n_cols] */
                        int n_rows, int n_cols, double eps, int site_x, int site_y);

    /* Rotary position embedding (Su et al., 2021), half-split pairs (d, d + head_dim/2), in place.
     * cos and sin come from rope_table.h. */
    void (*rope)(struct device *dev, float *x, /* [n_tokens, n_heads, head_dim] */
                 const int32_t *positions,     /* [n_tokens] */
                 const float *cos_table,       /* [n_positions, head_dim / 2] */
                 const float *sin_table,       /* [n_positions, head_dim / 2] */
                 int n_tokens, int n_heads, int head_dim);

    /* What becomes of the queries and keys of a pass, in place, in one op: rmsnorm per head where
     * there is a gain (Qwen3), then rope, which has the shapes of positions and tables. With `to`,
     * keys and v [n_tokens, k->n_heads, head_dim] are stored, too, as kv_append does it; NULL: v is
     * not looked at. q, k, to: host. With to->then (kv_view.h) attend may do it all instead. */
    void (*norm_rope)(struct device *dev, const struct head_rows *q, const struct head_rows *k,
                      const float *v, const struct kv_target *to, const int32_t *positions,
                      const float *cos, const float *sin, int n_tokens, int head_dim, double eps);

    /* Makes each key row and value row what the cache's type holds (model/attention/kv_type.h: rows
     * of bfp are snapped, of fp8 divided by the scale, rounded and saturated, of other floats
     * rounded), and writes it to its slot = page * page_size + position (paged_batch_slots), in any
     * layout. A negative slot is skipped; others must be of the cache, nobody checks. kv: host. */
    void (*kv_append)(struct device *dev, const struct kv_views *kv,
                      const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                      const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                      const int64_t *slots, /* [n_tokens] */
                      int n_tokens, int page_size, int n_kv_heads, int head_dim, int site_k,
                      int site_v);

    /* Slot i of `to` gets what slot slots[i] >= 0 of `from` holds: pages become contiguous. */
    void (*kv_gather)(struct device *dev, const struct kv_layer *to, const struct kv_layer *from,
                      const int64_t *slots, /* [n_tokens] */
                      int n_tokens, int n_kv_heads, int head_dim);

    /* Causal attention of one sequence over its contiguous cache: the queries are the last
     * n_tokens of kv_len positions, already appended. Each operation: tutorials/numerics-1.md
     * (online softmax: Milakov and Gimelshein, 2018; tiling: Dao et al., 2022). */
    void (*attention)(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                      const float *q,               /* [n_tokens, n_heads, head_dim] */
                      const struct kv_layer *kv, int n_tokens, int kv_len,
                      const struct attention_shape *shape, int site);

    /*
     * Attention of many sequences over one paged cache, in one call. The plan turns the lengths and
     * page tables of a batch into work for the device, once per pass; attend uses it in every layer
     * and touches device memory only.
     *
     * attention_plan_new: an empty plan, or NULL with err set. attention_plan_free: NULL is fine.
     * attention_plan copies the batch. variant (host): what attend will be given; what it says of
     * causal, window and mask matters here, scores do not; NULL: causal. Tiles that sequences share
     * are read once where that pays (model/attention/cascade.h). Returns 0, or -1 with err set:
     * what paged_batch_check or attention_variant_check refuses, no memory, more tiles than can be
     * counted; the plan is then of no sequences. A plan must not change while attend may still use
     * it: not before the next sync.
     */
    struct attention_plan *(*attention_plan_new)(struct device *dev, struct error *err);
    void (*attention_plan_free)(struct device *dev, struct attention_plan *plan);
    int (*attention_plan)(struct device *dev, struct attention_plan *plan,
                          const struct paged_batch *batch, const struct attention_shape *shape,
                          const struct attention_variant *variant, struct error *err);

    /* What a recording with a plan depends on, 0 ... N_PLAN_FORMS - 1: when every sequence has one
     * query (or none: padding), it may be replayed with any such plan of the same form and number
     * of sequences. (+ 1: sequences share tiles; + 2: one is split.) Of more queries, what is
     * launched depends on lengths. */
    int (*attention_plan_form)(const struct attention_plan *plan);

    /*
     * Attention of the planned batch over a cache in any layout and of any type
     * (model/attention/kv_view.h), with any masks and scores (model/attention/variant.h). Rows that
     * see no position get zeros. The plain case, a pool of bfp16 as the engine has it:
     * kv_layer_views and attention_variant_causal(). Ragged keys and values: the plan of
     * paged_batch_of_ragged. Paged attention: Kwon et al., "Efficient Memory Management for Large
     * Language Model Serving with PagedAttention", 2023; layouts and variants: FlashInfer (Ye et
     * al., 2025) and vLLM.
     *
     * kv and variant are host structs that hold addresses of device memory. The cache has the pages
     * of the planned batch, its masks are those of the planned sequences (attention_mask_offsets),
     * and variant is in range: attention_plan refuses it otherwise, if it is given the same one. A
     * plan that was given another window or mask form is right, and may be slower.
     */
    void (*attend)(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                   const float *q,               /* [n_tokens, n_heads, head_dim] */
                   const struct kv_views *kv, const struct attention_plan *plan,
                   const struct attention_variant *variant, int site);

    /*
     * Merges what two calls of attend found for the same rows over other keys (their variants have
     * m and l): `to` becomes the state of both together. `with` stands behind `to`: where it is one
     * tile of 256 positions, and `to` all whole tiles before it, the bits are those of one call
     * over both; two states of several tiles each round otherwise. A row that has seen nothing
     * changes nothing. Both are of caches with the same scale of values, which no state has in it.
     * Each call takes its queries for the newest of its positions; where distances count (causal,
     * windows, slopes), let masks hide positions instead of leaving pages out.
     * The idea: Ye et al., "Cascade Inference", 2024.
     */
    void (*merge_states)(struct device *dev, const struct attention_state *to, /* n_rows */
                         const struct attention_state *with,                   /* n_rows */
                         int n_rows, int head_dim);

    /* The result: y = o / l (0 where l is 0) times the scale of the cache's values (1 but for fp8),
     * and the log of the sum if lse is not NULL. y may be the state's o. */
    void (*finish_states)(struct device *dev, float *y, /* [n_rows, head_dim] */
                          float *lse,                   /* [n_rows] or NULL */
                          enum lse_base base, const struct attention_state *state, float v_scale,
                          int n_rows, int head_dim);

    /* Copies all keys, or all values, of a cache to one of another layout: the same bits, so both
     * have the same sizes, type and scale. Views: host. */
    void (*kv_convert)(struct device *dev, const struct kv_view *to, const struct kv_view *from,
                       int n_pages, int page_size, int n_kv_heads, int head_dim);

    /* y = silu(gate) * up; y may be gate or up. */
    void (*silu_mul)(struct device *dev, float *y, /* [count] */
                     const float *gate,            /* [count] */
                     const float *up,              /* [count] */
                     size_t count);

    /* The rows silu(gate) * up, [n_rows, n_cols], snapped. Afterwards gate is undefined. */
    void (*silu_mul_snap)(struct device *dev, struct bfp_rows y, float *gate, const float *up,
                          int n_rows, int n_cols, int site);

    /* y = x + z; y may be x or z. */
    void (*add)(struct device *dev, float *y, /* [count] */
                const float *x,               /* [count] */
                const float *z,               /* [count] */
                size_t count);

    /* The next token of each row: greedy (lowest id on ties) or drawn. A logit that is not finite
     * is a fault and gives token 0. */
    void (*sample)(struct device *dev, int32_t *token_ids, /* [n_rows] */
                   const float *logits,                    /* [n_rows, vocab] */
                   const struct sampling *how,             /* host [n_rows] */
                   int n_rows, int vocab, int site);

    /* SHA-256 of rows of float32, little endian, as a tree (Merkle, 1987), whose pieces threads can
     * share: of HASH_PIECE_BYTES, the last may be shorter; their digests, one behind the other, are
     * cut and hashed again, until there is one. digests: device memory, or of alloc_host_visible,
     * there after hash_wait: a device may hash a copy of x beside the ops that follow. */
    void (*hash_rows)(struct device *dev, unsigned char *digests, /* [n_rows, SHA256_BYTES] */
                      const float *x,                             /* [n_rows, n_cols] */
                      int n_rows, int n_cols);

    /* Waits for the last hash_rows alone. -1, err set: the device failed. NULL: nothing waits. */
    int (*hash_wait)(struct device *dev, struct error *err);

    /*
     * All ops of a decoding pass in one, from token ids to logits: forward.h, for one token of each
     * sequence, the newest of its positions, which is appended; and each one's greedy token, as
     * sample draws it. What is computed, and the faults, are the same. NULL: this device has none.
     * kv: the layers of the pool, bfp16. Returns 1; 0 when it leaves the pass to the other ops; -1
     * with err set: what paged_batch_check refuses.
     */
    int (*decode_step)(struct device *dev, float *logits, /* [n_sequences, vocab] */
                       int32_t *drawn,                    /* [n_sequences], as sample's */
                       const struct model *model,         /* host */
                       const struct kv_layer *kv,         /* host [n_layers] */
                       const struct paged_batch *pages,   /* host */
                       const int32_t *token_ids,          /* host [n_sequences] */
                       struct error *err);
};

/* The tables that exist. Which of the last two a program has is decided when it is linked: of a
 * weak name that nobody defines, the address is NULL. */
extern const struct ops ref_ops;
extern const struct ops gpu_ops __attribute__((weak));
extern const struct ops emu_ops __attribute__((weak));

/* The table for a run that names none: the GPU if this build has its kernels and a GPU is there,
 * else the CPU. *why is set to a line to print when the GPU's kernels are here but cannot be used,
 * else to an empty string. */
const struct ops *ops_default(struct error *why);

/* Whether alloc gives memory of the host, so that nothing need be copied to be read. */
bool ops_share_memory(const struct ops *ops);

/* The table called `name`, or NULL with err set to a line that lists the ones built in. */
const struct ops *ops_find(const char *name, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
